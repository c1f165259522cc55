// What is true of the whole data directory: whether writes may go on, what waits for space, how
// much of the budget is taken, what was counted. Shared by everything in this module; thread-safe.
//
// Waiting for space: an attempt that fails with kResourceExhausted is made again every half second,
// until it succeeds, fails otherwise, or the storage stops (kCancelled). Attempts of callers that
// must not block are made on the thread "luwu-space". What must be written even then takes from the
// reserve; until that is whole again, payload that needs new space waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/persist/reserve.h"

namespace luwu::persist {

class NodeState {
 public:
  using Attempt = std::function<Status()>;

  NodeState();
  ~NodeState();

  // OK, kCorrupt after Fail, kCancelled after Stop.
  Status Usable() const;
  // Where the directory lies, for messages; set before use.
  void set_device(std::string device) { device_ = std::move(device); }
  const std::string& device() const { return device_; }
  // For ever: until the process is started again.
  void Fail(const std::string& why);
  std::string failed() const;
  // Something that was stored is not what it was. Logged, and remembered for the status.
  void ReportDamage(const std::string& what);
  std::vector<std::string> damaged() const;

  // After Stop, when nobody comes with attempts any more: those that wait are told, and the thread
  // is gone.
  void End();
  // Waits end; later ones are refused.
  void Stop();
  // Something waited for space when it was stopped.
  bool stopped_full() const;
  // Blocks as long as the disk is full.
  Status RetryWhileFull(const Attempt& attempt);
  // Does not block: the first attempt is made soon, on the thread. Once the storage has stopped,
  // the attempt is made once more, and Usable tells it so.
  void RetryLater(Attempt attempt);
  // Called on the thread before it tries again what waits; may block.
  void set_before_retries(std::function<void()> call);
  // Set while something waits: what is missing, and where.
  std::optional<std::string> full() const;
  uint64_t waiting() const;

  // Before anything waits. Without one there is nothing to take from.
  void set_reserve(std::unique_ptr<Reserve> reserve);
  // Bytes for the file system, out of the reserve. False: there were none.
  bool ReleaseReserve(uint64_t bytes);
  // The same for a file that could not be made. False also when it lacks an inode.
  bool ReleaseReserveForFile(uint64_t bytes);
  // kResourceExhausted while payload that takes space has to wait.
  Status PayloadRoom() const;

  // Bytes of payload. A limit of zero is none.
  void set_stop_bytes(uint64_t bytes) { stop_bytes_ = bytes; }
  // kResourceExhausted when that would go above the limit.
  Status TakeBudget(uint64_t bytes);
  void GiveBudget(uint64_t bytes) { used_bytes_ -= bytes; }
  void AddUsed(uint64_t bytes) {
    used_bytes_ += bytes;
  }  // recovery: it is there, whatever the limit
  uint64_t used_bytes() const { return used_bytes_; }

  std::atomic<uint64_t> read_bytes{0};
  std::atomic<uint64_t> written_bytes{0};
  std::atomic<uint64_t> scrubbed_bytes{0};
  std::atomic<uint64_t> scrub_cycles{0};

 private:
  struct Waiter {
    Attempt attempt;
    bool counted = false;  // in waiting_: the first attempt has failed
  };
  void Run();
  void RestoreReserve();
  void Waits(const std::string& what, bool is_new) LUWU_REQUIRES(mutex_);
  void WaitsNoMore() LUWU_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ LUWU_GUARDED_BY(mutex_) = false;
  bool stopped_full_ LUWU_GUARDED_BY(mutex_) = false;
  bool ending_ LUWU_GUARDED_BY(mutex_) = false;
  std::string failed_ LUWU_GUARDED_BY(mutex_);
  std::deque<std::string> damaged_ LUWU_GUARDED_BY(mutex_);
  std::string full_ LUWU_GUARDED_BY(mutex_);
  uint64_t waiting_ LUWU_GUARDED_BY(mutex_) = 0;
  std::vector<Waiter> arrived_ LUWU_GUARDED_BY(mutex_);
  std::function<void()> before_retries_ LUWU_GUARDED_BY(mutex_);

  std::string device_ = "unknown";
  std::unique_ptr<Reserve> reserve_;  // set before use
  std::atomic<bool> restoring_{false};
  std::atomic<uint64_t> stop_bytes_{0};
  std::atomic<uint64_t> used_bytes_{0};
  std::thread thread_;  // last: it uses the rest
};

}  // namespace luwu::persist
