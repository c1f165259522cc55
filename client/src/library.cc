#include "client/src/library.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "client/include/luwu/luwu.h"

namespace luwu::client {
namespace {

constexpr uint64_t kSessionKind = 1;
constexpr uint64_t kOperationKind = 2;
constexpr uint32_t kSessionsMax = 1024;
constexpr uint32_t kOperationsMax = 1 << 20;

std::atomic<bool> g_forked{false};

// Ends the threads of open sessions before static objects that they use are destroyed. The daemons
// notice the closed links.
struct AtExit {
  ~AtExit() {
    if (g_forked) return;
    constexpr bool kFarewell = false;
    for (const auto& session : Library::Get().sessions().All()) session->Close(kFarewell);
  }
};

}  // namespace

Library::Library()
    : sessions_(kSessionKind, kSessionsMax), operations_(kOperationKind, kOperationsMax) {}

Library& Library::Get() {
  // Never destroyed: calls may come while the process exits.
  static Library& library = *std::make_unique<Library>().release();
  return library;
}

Status Library::Init(uint32_t abi_version) {
  if (abi_version != LUWU_ABI_VERSION) {
    return Error(ErrorCode::kAbiVersion,
                 "the program was built for ABI {}, this library is {}; install the libluwu that "
                 "matches its luwu.h",
                 abi_version, LUWU_ABI_VERSION);
  }
  static std::once_flag once;
  std::call_once(once, [] {
    ::pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
    static const AtExit at_exit;
  });
  initialized_ = true;
  return OkStatus();
}

Status Library::CheckUsable() const {
  if (!g_forked.load(std::memory_order_relaxed)) return OkStatus();
  return Error(ErrorCode::kState,
               "this process is a fork of one that used libluwu; start workers by exec (in Python: "
               "multiprocessing's spawn method), or load libluwu after the fork only");
}

Status Library::CheckReady() const {
  if (initialized_) return OkStatus();
  return Error(ErrorCode::kState, "call luwu_init(LUWU_ABI_VERSION) first");
}

StatusOr<std::shared_ptr<Session>> Library::FindSession(Handle handle) const {
  std::shared_ptr<Session> session = sessions_.Find(handle);
  if (session != nullptr) return session;
  return Error(ErrorCode::kBadHandle, "{:#x} is no open session (closed, or never one)", handle);
}

StatusOr<std::shared_ptr<Operation>> Library::FindOperation(Handle handle) const {
  std::shared_ptr<Operation> operation = operations_.Find(handle);
  if (operation != nullptr) return operation;
  return Error(ErrorCode::kBadHandle, "{:#x} is no operation (its result was taken, or never one)",
               handle);
}

}  // namespace luwu::client
