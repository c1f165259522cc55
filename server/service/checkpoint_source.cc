#include "server/service/checkpoint_source.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "common/base/memory.h"
#include "common/base/sync.h"
#include "server/service/job_tensors.h"
#include "server/step/state_values.h"
#include "server/store/state_shape.h"

namespace luwu {
namespace {

// How long a thread waits for the device before it looks after other work.
constexpr uint64_t kDeviceWaitMs = 100;
constexpr uint32_t kNoShard = std::numeric_limits<uint32_t>::max();

}  // namespace

// Belongs to the source and to the transfer into it.
struct CheckpointSource::Buffer {
  Mapping memory;
  Mutex mutex;
  CondVar came;
  uint32_t shard LUWU_GUARDED_BY(mutex) = kNoShard;
  bool busy LUWU_GUARDED_BY(mutex) = false;
  Status status LUWU_GUARDED_BY(mutex);
};

StatusOr<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(CheckpointPlace place) {
  ASSIGN_OR_RETURN(persist::HeldCheckpoint held, place.storage->HoldCheckpoint(place.name));
  std::unique_ptr<CheckpointSource> source(new CheckpointSource(std::move(place), std::move(held)));
  RETURN_IF_ERROR(source->CheckEntries());
  return source;
}

CheckpointSource::CheckpointSource(CheckpointPlace place, persist::HeldCheckpoint held)
    : spec_(std::move(place.spec)),
      node_(place.nodes[place.self].name),
      map_(spec_, Placement(place.nodes, spec_), place.self),
      storage_(std::move(place.storage)),
      held_(std::move(held)),
      segments_of_(kNoShard) {
  for (const LocalShard& shard : map_.shards()) {
    buffer_bytes_ = std::max(buffer_bytes_, ShapeOf(spec_, shard).stored_bytes());
  }
  buffer_bytes_ = AlignUp(buffer_bytes_, persist::kIoAlignment);
}

uint32_t CheckpointSource::moments() const { return MomentsOf(spec_); }

Status CheckpointSource::CheckEntries() const {
  const auto corrupt = [&](const std::string& what) {
    return Error(ErrorCode::kCorrupt, "checkpoint '{}' of job '{}' on node '{}': {}",
                 held_.checkpoint.name, spec_.name, node_, what);
  };
  if (held_.entries.size() != map_.shard_count()) {
    return corrupt(fmt::format("{} shards are stored, and the node owns {}", held_.entries.size(),
                               map_.shard_count()));
  }
  for (uint32_t i = 0; i < map_.shard_count(); ++i) {
    const persist::ShardEntry& entry = held_.entries[i];
    const uint64_t bytes = ShapeOf(spec_, map_.shards()[i]).stored_bytes();
    if (entry.shard == i && entry.generation.bytes == bytes) continue;
    return corrupt(fmt::format("shard {} has {} bytes on disk, not {}", entry.shard,
                               entry.generation.bytes, bytes));
  }
  return OkStatus();
}

StartPoint CheckpointSource::WhereItStands() const {
  StartPoint then;
  then.step = point().step;
  then.loss_scale = point().loss_scale;
  then.finite_run = point().finite_steps;
  for (const LayerSpec& layer : spec_.layers) {
    then.applied.emplace_back(ShardCount(layer.elements, spec_.shard_elements));
  }
  for (const persist::ShardEntry& entry : held_.entries) {
    const LocalShard& local = map_.shards()[entry.shard];
    then.applied[local.layer][local.shard] = entry.generation.applied;
  }
  return then;
}

Status CheckpointSource::Begin(uint32_t index) {
  std::shared_ptr<Buffer>& buffer = buffers_[index % 2];
  if (buffer == nullptr) {
    auto made = std::make_shared<Buffer>();
    ASSIGN_OR_RETURN(made->memory, AllocateHuge(buffer_bytes_));
    buffer = std::move(made);
  }
  {
    MutexLock lock(buffer->mutex);
    if (buffer->busy || buffer->shard == index) return OkStatus();
    buffer->shard = index;
    buffer->busy = true;
  }
  // What is being read is held, too: its space must not be written to before the transfer ends.
  storage_->Read(held_.entries[index], buffer->memory.data(),
                 [buffer, hold = held_.hold](const Status& status) {
                   MutexLock lock(buffer->mutex);
                   buffer->status = status;
                   buffer->busy = false;
                   buffer->came.NotifyAll();
                 });
  return OkStatus();
}

StatusOr<std::byte*> CheckpointSource::Await(uint32_t index) {
  RETURN_IF_ERROR(Begin(index));
  const std::shared_ptr<Buffer>& buffer = buffers_[index % 2];
  const TimePoint deadline = DeadlineAfter(kDeviceWaitMs);
  {
    MutexLock lock(buffer->mutex);
    while (buffer->busy) {
      if (!buffer->came.WaitUntil(buffer->mutex, deadline) && buffer->busy) {
        return Error(ErrorCode::kDeadline, "shard {} of job '{}' is still being read from the disk",
                     index, spec_.name);
      }
    }
    if (buffer->shard != index) {
      return Error(ErrorCode::kDeadline, "another shard was being read; ask again");
    }
    RETURN_IF_ERROR(buffer->status);
  }
  if (index + 1 < map_.shard_count()) RETURN_IF_ERROR(Begin(index + 1));
  return buffer->memory.data();
}

Status CheckpointSource::Read(const Place& place, interchange::SourceBatch* batch) {
  const ShardMap::IndexRange range = map_.LayerRange(place.layer);
  uint64_t skip = place.skip_elements;
  uint32_t index = range.begin;
  while (index < range.end && skip >= map_.shards()[index].elements) {
    skip -= map_.shards()[index++].elements;
  }
  batch->step = point().step;
  batch->end = index == range.end;
  if (batch->end) return OkStatus();
  ASSIGN_OR_RETURN(std::byte* const data, Await(index));
  const LocalShard& shard = map_.shards()[index];
  if (segments_of_ != index) {
    segments_ = SegmentsOf(spec_.layers[shard.layer], shard);
    segments_of_ = index;
  }
  const StateShape shape = ShapeOf(spec_, shard);
  const StateView view = {.index = index,
                          .array = place.array,
                          .state = shape.ArraysAt(data),
                          .served = data + shape.generation_bytes};
  const uint64_t count = std::min(interchange::SourceBatch::kElementsMax, shard.elements - skip);
  batch->values.resize(count);
  ReadStateValues({spec_, shard, segments_}, view, skip, batch->values);
  batch->runs.push_back({shard.first_element + skip, count});
  batch->end = skip + count == shard.elements && index + 1 == range.end;
  return OkStatus();
}

}  // namespace luwu
