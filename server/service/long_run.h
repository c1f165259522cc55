// Work of minutes that a call waits for, done on the control queue in slices: other calls get their
// turn in between, and it ends when its caller goes, when its deadline passes or when the daemon
// stops. How far it is can be asked for by a number that the caller chose.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/sync.h"
#include "server/service/service_context.h"

namespace luwu {

struct RunProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
};

// The runs of a daemon: few, because each has buffers.
class RunTable {
 public:
  static constexpr size_t kRunsMax = 2;

  // kUnavailable when there are too many; kAlreadyExists.
  StatusOr<std::shared_ptr<RunProgress>> Enter(uint64_t number) LUWU_EXCLUDES(mutex_);
  void Leave(uint64_t number) LUWU_EXCLUDES(mutex_);
  StatusOr<std::shared_ptr<RunProgress>> Find(uint64_t number) const LUWU_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<RunProgress>> runs_ LUWU_GUARDED_BY(mutex_);
};

// What is to be done. One thread at a time, each call a bounded piece of work.
class LongWork {
 public:
  virtual ~LongWork() = default;
  virtual Status Open(RunProgress* progress) = 0;
  // True: done. kDeadline: something is busy, call again (for kBusyMs at most).
  virtual StatusOr<bool> Step(RunProgress* progress) = 0;
  // Fills the response.
  virtual void Answer() = 0;

  static constexpr uint64_t kBusyMs = 10'000;
};

struct RunRequest {
  std::shared_ptr<RunTable> table;
  uint64_t number = 0;
  std::unique_ptr<LongWork> work;
};
// Finishes `reply` with Answer() or the first error.
void StartRun(const ServiceContext& services, std::shared_ptr<DeferredReply> reply,
              RunRequest request);

}  // namespace luwu
