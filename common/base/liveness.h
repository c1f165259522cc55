// Whether the threads that serve everybody still move: loops of the data plane, update threads.
// Each says when a turn of work begins and ends; between turns it may wait for ever. A turn that
// lasts longer than anything of ours can means that the thread is stuck.
//
// Owned by nobody: one list for the process, because loops are made deep inside. Thread-safe; Begin
// and End are for the loop's own thread, a store each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace luwu {

class LiveLoop {
 public:
  // On the list until it is destroyed.
  explicit LiveLoop(std::string name);
  ~LiveLoop();
  LiveLoop(const LiveLoop&) = delete;
  LiveLoop& operator=(const LiveLoop&) = delete;

  void Begin() {
    since_.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                 std::memory_order_relaxed);
  }
  void End() { since_.store(0, std::memory_order_relaxed); }

 private:
  friend std::vector<std::string> StuckLoops(TimePoint now, uint64_t limit_ms);

  const std::string name_;
  std::atomic<int64_t> since_{0};  // of the clock; 0: between turns
};

// Names of the loops whose turn has lasted longer, "luwu-update-3 for 31 s".
std::vector<std::string> StuckLoops(TimePoint now, uint64_t limit_ms);

}  // namespace luwu
