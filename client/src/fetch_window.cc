// Where a copy lies that may be read, and asking for those that are not in memory.
#include <algorithm>
#include <memory>
#include <utility>

#include "client/src/fetch_action.h"
#include "client/src/fetch_engine.h"
#include "common/wire/board.h"
#include "common/wire/window.h"

namespace luwu::client {
namespace {

// A notification that nobody waits for: when it is lost, the wish is repeated.
class Wish final : public transport::Request {
 public:
  void Complete(const Status& /*status*/) override { const std::unique_ptr<Wish> end(this); }
};

}  // namespace

StatusOr<std::optional<CopyPlace>> FetchEngine::FindPlace(const MonitorLock& lock,
                                                          const FetchCall& call,
                                                          const ShardPlan& shard) {
  const ShardMap& map = fabric_->plan().map(shard.node);
  const uint64_t version = StoredVersion(call);
  const uint32_t index = shard.local_index;
  if (!map.has_window()) return FixedPlace(call, shard);
  NodeLink& node = fabric_->node(shard.node);
  const WindowPlace place = WindowPlace::Of(node.board().place(index, version));
  if (!node.wants(lock).Trust(index, version, place.residence)) return std::nullopt;
  if (place.slot >= map.window_slots()) {
    return Error(ErrorCode::kCorrupt, "{}: the board says slot {} of a window of {}",
                 Describe(call, shard), place.slot, map.window_slots());
  }
  return CopyPlace{.payload_offset = map.window_payload_offset(place.slot),
                   .header_offset = ShardMap::window_header_offset(place.slot),
                   .residence = place.residence};
}

// True when there is something to ask for: `first`, and what the fetch wants after it.
bool FetchEngine::TakeWishes(const MonitorLock& lock, Job& job, const ShardPlan& first,
                             Action* action, TimePoint* wake_at) {
  const uint64_t version = StoredVersion(job.call);
  const TimePoint now = std::chrono::steady_clock::now();
  const std::vector<ShardPlan>& shards = job.plan->shards;
  uint32_t left = fabric_->node(first.node).wants(lock).ahead();
  for (size_t i = first.shard; i < shards.size() && left > 0; ++i) {
    const ShardPlan& shard = shards[i];
    if (!fabric_->plan().map(shard.node).has_window() ||
        Intersecting(job.context->segments, shard.range).empty()) {
      continue;
    }
    const StatusOr<bool> readable = IsReadable(lock, job.call, shard);
    if (!readable.ok() || !*readable) break;
    const auto place = FindPlace(lock, job.call, shard);
    if (!place.ok() || *place) continue;
    --left;
    NodeLink& node = fabric_->node(shard.node);
    std::shared_ptr<Link> link = node.link(lock);
    if (link == nullptr || !node.wants(lock).Ask(shard.local_index, version, now)) continue;
    action->wishes.push_back({std::move(link), WantOf(shard.local_index, version)});
  }
  *wake_at = std::min(*wake_at,
                      fabric_->node(first.node).wants(lock).again_at(first.local_index, version));
  action->kind = Action::Kind::kAsk;
  return !action->wishes.empty();
}

void FetchEngine::SendWishes(const Action& action) {
  constexpr uint32_t kLane = 0;
  for (const Action::WishFor& wish : action.wishes) {
    wish.link->endpoint().Notify(kLane, wish.immediate, std::make_unique<Wish>().release());
  }
}

// The copy went away while it was read: it is to be asked for again.
void FetchEngine::NoteGone(Job& job, const ShardPlan& shard, uint64_t residence) {
  MonitorLock lock(fabric_->monitor());
  fabric_->node(shard.node)
      .wants(lock)
      .NoteGone(shard.local_index, StoredVersion(job.call), residence);
  job.again.push_back(&shard);
}

}  // namespace luwu::client
