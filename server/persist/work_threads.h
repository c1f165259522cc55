// A few threads that make blocking calls (into RocksDB) for callers that must not block, and check
// what was read. The work
// that waits is bounded by the callers' buffers. The destructor ends after the last of it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/sync.h"

namespace luwu::persist {

class WorkThreads {
 public:
  explicit WorkThreads(uint32_t threads);
  ~WorkThreads();
  void Do(std::function<void()> work);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace luwu::persist
