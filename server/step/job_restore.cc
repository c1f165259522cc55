// Going on from a point: state from the storage, served copies from the state. Before anybody else
// sees the job.
#include <algorithm>

#include "common/base/log.h"
#include "common/base/sync.h"
#include "server/step/job_impl.h"
#include "server/store/stored_bytes.h"

namespace luwu {
namespace {

constexpr uint32_t kAhead = 4;  // shards that are asked for before they are needed

}  // namespace

Status JobImpl::Restore(const persist::Point& point) {
  ASSIGN_OR_RETURN(const std::vector<persist::ShardEntry> entries,
                   plan_->options.storage->EntriesAt(point));
  if (entries.size() != plan_->map.shard_count()) {
    return Error(
        ErrorCode::kCorrupt,
        "point {} of job '{}' has {} shards on node '{}', which owns {}; was the node list "
        "changed?",
        point.step, spec().name, entries.size(), self().name, plan_->map.shard_count());
  }
  RETURN_IF_ERROR(RestoreShards(point, entries));
  MutexLock lock(mutex_);
  gate_.Restore(point.step, point.loss_scale);
  made_.finite_steps = point.finite_steps;
  counters_.skipped_steps = point.skipped_steps;
  made_.durable = point;
  made_.begun_step = point.step;
  state_ = JobState::kTraining;
  for (const persist::ShardEntry& entry : entries) {
    shards_[entry.shard].applied = entry.generation.applied;
    shards_[entry.shard].load_dirty = false;
    published_[entry.shard] = (shards_[entry.shard].trainable ? point.step : 0) + 1;
  }
  LogInfo("job_restored", "job={} node={} step={} shards={}", spec().name, self().name, point.step,
          entries.size());
  return OkStatus();
}

Status JobImpl::RestoreShards(const persist::Point& point,
                              const std::vector<persist::ShardEntry>& entries) {
  for (const persist::ShardEntry& entry : entries) {
    std::shared_ptr<StoredGeneration> generation;
    if (!store_->resident(entry.shard)) {
      generation = std::make_shared<StoredGeneration>(storage_use_, entry.generation);
      store_->SetCurrent(entry.shard, generation);
    }
    points_->SetRestored(entry.shard, entry.generation.applied, generation);
  }
  size_t asked = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (; asked < std::min(i + kAhead, entries.size()); ++asked) {
      store_->Request(entries[asked].shard);
    }
    RETURN_IF_ERROR(RestoreShard(point, entries[i]));
  }
  return store_->Flush();
}

Status JobImpl::RestoreShard(const persist::Point& point, const persist::ShardEntry& entry) {
  const uint32_t index = entry.shard;
  if (!store_->resident(index)) {
    RETURN_IF_ERROR(store_->Open(index));
    const ShardState state = store_->Acquire(index);
    const Status published =
        updater_.PublishRestored(index, point.step, state.current, state.served);
    store_->Drop(index);  // stays stored as it is
    return published;
  }
  std::byte* const data = points_->buffer(0);
  RETURN_IF_ERROR(ReadStored(*plan_->options.storage, entry, data));
  const StateShape shape = ShapeOf(spec(), plan_->map.shards()[index]);
  if (entry.generation.bytes != shape.stored_bytes()) {
    return Error(ErrorCode::kCorrupt, "shard {} of job '{}' has {} bytes on disk, not {}", index,
                 spec().name, entry.generation.bytes, shape.stored_bytes());
  }
  const optim::StateArrays from = shape.ArraysAt(data);
  const ShardState to = store_->Acquire(index);
  for (uint32_t i = 0; i < optim::kStateArraysMax && from.data[i] != nullptr; ++i) {
    std::copy_n(from.data[i], shape.array_bytes[i], to.current.data[i]);
    if (to.next == to.current) continue;
    std::copy_n(from.data[i], shape.array_bytes[i], to.next.data[i]);
  }
  return updater_.PublishRestored(index, point.step, to.current, data + shape.generation_bytes);
}

}  // namespace luwu
