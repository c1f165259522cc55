#include "common/base/liveness.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/base/sync.h"

namespace luwu {
namespace {

struct LoopList {
  Mutex mutex;
  std::vector<const LiveLoop*> loops LUWU_GUARDED_BY(mutex);
};

// Never destroyed: threads may end after static objects.
LoopList& List() {
  static LoopList& list = *std::make_unique<LoopList>().release();
  return list;
}

}  // namespace

LiveLoop::LiveLoop(std::string name) : name_(std::move(name)) {
  const MutexLock lock(List().mutex);
  List().loops.push_back(this);
}

LiveLoop::~LiveLoop() {
  const MutexLock lock(List().mutex);
  std::erase(List().loops, this);
}

std::vector<std::string> StuckLoops(TimePoint now, uint64_t limit_ms) {
  std::vector<std::string> stuck;
  const MutexLock lock(List().mutex);
  for (const LiveLoop* loop : List().loops) {
    const int64_t since = loop->since_.load(std::memory_order_relaxed);
    if (since == 0) continue;
    const auto lasted = now - TimePoint(TimePoint::duration(since));
    if (lasted <= Milliseconds(limit_ms)) continue;
    stuck.push_back(fmt::format("{} for {} s", loop->name_,
                                std::chrono::duration_cast<std::chrono::seconds>(lasted).count()));
  }
  return stuck;
}

}  // namespace luwu
