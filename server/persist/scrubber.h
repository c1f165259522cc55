// Reads what is stored again and again, at a set rate, and compares checksums: damage is found
// while there still are checkpoints to go back to, not when the state is needed. One thread,
// "luwu-scrub"; what it finds goes into the node's state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/persist/job_store.h"
#include "server/persist/node_state.h"

namespace luwu::persist {

class Scrubber {
 public:
  using Jobs = std::function<std::vector<std::shared_ptr<JobStore>>()>;

  // `state` outlives the scrubber; `jobs` is called on its thread, once per cycle.
  Scrubber(NodeState* state, Jobs jobs, uint64_t bytes_per_s);
  ~Scrubber();

 private:
  void Run();
  // Waits until `bytes` more may be read; false when the scrubber is to end.
  bool Pace(uint64_t bytes);
  bool WaitUntil(TimePoint time);

  NodeState* const state_;
  const Jobs jobs_;
  const uint64_t bytes_per_s_;
  TimePoint next_;  // the thread's own

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace luwu::persist
