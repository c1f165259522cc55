// Fetches without a copy, and the wait for initial weights.
#include <algorithm>
#include <utility>

#include "client/src/fetch_engine.h"

namespace luwu::client {

Status FetchEngine::View(const FetchCall& call, FetchContext& context,
                         std::vector<ViewPiece>* pieces) {
  Job job;
  job.call = call;
  job.context = &context;
  job.plan = &fabric_->plan().layers()[call.layer];
  for (const LayerPlan::NodeShards& here : job.plan->by_node) {
    NodeLink& node = fabric_->node(here.node);
    if (fabric_->plan().map(here.node).has_window()) {
      return Error(ErrorCode::kUnsupported,
                   "a view needs served copies that stay in memory, and those of {} do not fit; "
                   "use luwu_fetch",
                   node.Name());
    }
    if (node.is_shm()) continue;
    return Error(ErrorCode::kUnsupported,
                 "a view needs shared memory, and {} is reached by {}; use luwu_fetch", node.Name(),
                 transport::KindName(node.kind()));
  }
  std::vector<std::shared_ptr<Link>>& links = context.view_links;
  links.clear();
  {
    MonitorLock lock(fabric_->monitor());
    RETURN_IF_ERROR(CollectView(lock, job, pieces, &links));
  }
  for (const ShardPlan& shard : job.plan->shards) {
    const Link& link = *links[shard.node];
    const bool verify = fabric_->options().verify == VerifyPayload::kAlways;
    const CopyPlace place = FixedPlace(call, shard);
    RETURN_IF_ERROR(CheckCopy(call, shard, place, MappedHeader(place, link),
                              verify ? MappedPayload(shard, place, link) : ConstByteSpan())
                        .status());
  }
  links.clear();
  return OkStatus();
}

CopyPlace FetchEngine::FixedPlace(const FetchCall& call, const ShardPlan& shard) const {
  const ShardMap& map = fabric_->plan().map(shard.node);
  const uint64_t version = StoredVersion(call);
  return {.payload_offset = map.payload_offset(shard.local_index, version),
          .header_offset = ShardMap::header_offset(shard.local_index, version)};
}

// Waits until all shards are readable and all links up, then takes the addresses at one moment.
Status FetchEngine::CollectView(const MonitorLock& lock, const Job& job,
                                std::vector<ViewPiece>* pieces,
                                std::vector<std::shared_ptr<Link>>* links) {
  Job waiting = job;
  while (true) {
    if (!fabric_->progress(lock).IsProtected(job.call.layer, job.call.version)) {
      return Error(ErrorCode::kStaleVersion,
                   "layer '{}' version {}: this worker has closed the layer in step {}, so the "
                   "bytes may be replaced at any time",
                   fabric_->plan().spec().layers[job.call.layer].name, job.call.version,
                   job.call.version + 1);
    }
    links->assign(fabric_->plan().nodes().size(), nullptr);
    waiting.late = nullptr;
    bool ready = true;
    for (const ShardPlan& shard : job.plan->shards) {
      waiting.blocked_node = shard.node;
      RETURN_IF_ERROR(fabric_->CheckNode(lock, shard.node));
      StatusOr<bool> readable = IsReadable(lock, job.call, shard);
      RETURN_IF_ERROR(readable.status());
      if (!*readable) waiting.late = &shard;
      (*links)[shard.node] = fabric_->node(shard.node).link(lock);
      ready = *readable && (*links)[shard.node] != nullptr;
      if (!ready) break;
    }
    if (ready) break;
    RETURN_IF_ERROR(fabric_->CheckAllNodes(lock));
    if (std::chrono::steady_clock::now() >= job.call.deadline) return DeadlineError(lock, waiting);
    fabric_->WaitForChange(lock, job.context->waiter, job.call.deadline);
  }
  pieces->clear();
  for (const ViewRun& run : job.plan->runs) {
    const ShardPlan first{
        .node = run.node, .local_index = run.local_index, .shard = 0, .range = run.range};
    const CopyPlace place = FixedPlace(job.call, first);
    pieces->push_back({MappedPayload(first, place, *(*links)[run.node]).data(), run.range});
    fabric_->node(run.node).PinView(lock, job.call.version);
  }
  return OkStatus();
}

Status FetchEngine::AwaitLoaded(TimePoint deadline) {
  Loan context = TakeContext();
  MonitorLock lock(fabric_->monitor());
  for (const uint32_t index : fabric_->active()) {
    const BoardView& board = fabric_->node(index).board();
    const auto shards = static_cast<uint32_t>(fabric_->plan().map(index).shard_count());
    for (uint32_t shard = 0; shard < shards;) {
      if (board.published(shard) > 0) {
        ++shard;
        continue;
      }
      RETURN_IF_ERROR(fabric_->CheckAllNodes(lock));
      if (std::chrono::steady_clock::now() >= deadline) {
        if (const auto down = fabric_->FirstDown(lock)) return *down;
        return Error(ErrorCode::kDeadline,
                     "{} has no initial weights yet: no worker has finished loading",
                     fabric_->node(index).Name());
      }
      fabric_->WaitForChange(lock, context->waiter, deadline);
    }
  }
  return OkStatus();
}

}  // namespace luwu::client
