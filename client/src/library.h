// What exists once per process: the handle tables, the initialisation, and the knowledge of being
// a fork's child, where none of the threads exist and no call can work. Used by the C ABI files.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>

#include "client/src/error.h"
#include "client/src/handle_table.h"
#include "client/src/operation.h"
#include "client/src/session.h"

namespace luwu::client {

class Library {
 public:
  static Library& Get();
  Library();

  // Idempotent. kAbiVersion for a header that this library does not know.
  Status Init(uint32_t abi_version);
  // kState in a fork's child.
  Status CheckUsable() const;
  // Also kState before Init.
  Status CheckReady() const;

  HandleTable<Session>& sessions() { return sessions_; }
  HandleTable<Operation>& operations() { return operations_; }
  StatusOr<std::shared_ptr<Session>> FindSession(Handle handle) const;
  StatusOr<std::shared_ptr<Operation>> FindOperation(Handle handle) const;

 private:
  HandleTable<Session> sessions_;
  HandleTable<Operation> operations_;
  std::atomic<bool> initialized_{false};
};

// The barrier around every C function: refuses a fork's child, turns exceptions into statuses,
// keeps the text, returns the number. `body` returns a Status.
template <typename Body>
int32_t Guarded(const Body& body) noexcept {
  try {
    const Status usable = Library::Get().CheckUsable();
    return ReportStatus(usable.ok() ? body() : usable);
  } catch (const std::bad_alloc&) {
    return ReportFixed(ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& exception) {
    return ReportFixed(ErrorCode::kInternal, exception.what());
  } catch (...) {
    return ReportFixed(ErrorCode::kInternal, "unknown exception");
  }
}

// The same for a call in a session: when it failed because the job is rolled back, the caller hears
// that.
template <typename Body>
int32_t GuardedIn(Handle session, const Body& body) noexcept {
  return Guarded([&]() -> Status {
    const Status status = body();
    if (!RollbackInquiry::MayBeOne(CodeOf(status))) return status;
    const std::shared_ptr<Session> found = Library::Get().sessions().Find(session);
    return found == nullptr ? status : found->Explain(status);
  });
}

}  // namespace luwu::client
