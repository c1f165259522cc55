// Points and checkpoints of a job: the part of JobStore that decides what is kept.
#include <algorithm>
#include <set>
#include <utility>

#include "common/base/failpoint.h"
#include "server/persist/job_store.h"

namespace luwu::persist {

Status JobStore::CheckCommit(const Point& point, const std::vector<ShardEntry>& changed) const {
  const auto invalid = [&point, name = record_.name](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "job '{}' point {}: {}", name, point.step, what);
  };
  if (!index_.points().empty() && index_.points().rbegin()->first >= point.step) {
    return invalid(fmt::format("a point of step {} exists", index_.points().rbegin()->first));
  }
  std::set<uint32_t> seen;
  for (const ShardEntry& entry : changed) {
    const auto found = loose_.find(entry.generation.place);
    if (found == loose_.end() || found->second != entry.generation.bytes)
      return invalid(fmt::format("shard {}: what is committed was not written", entry.shard));
    if (!seen.insert(entry.shard).second)
      return invalid(fmt::format("shard {} is named twice", entry.shard));
    if (entry.generation.step > point.step)
      return invalid(fmt::format("shard {} is of step {}", entry.shard, entry.generation.step));
  }
  return OkStatus();
}

Status JobStore::Commit(const Point& point, const std::vector<ShardEntry>& changed,
                        SyncLevel level) {
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  StoredPoint stored{0, point};
  std::vector<StoredGeneration> generations;
  {
    const MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckCommit(point, changed));
    stored.branch = index_.branch();
    for (const ShardEntry& entry : changed) {
      generations.push_back({entry.shard, stored.branch, entry.generation});
      if (index_.HasStep(generations.back())) {
        return Error(ErrorCode::kInvalidArgument, "job '{}' shard {}: step {} is stored already",
                     record_.name, entry.shard, entry.generation.step);
      }
    }
  }
  LUWU_FAILPOINT("persist.commit.before");
  RETURN_IF_ERROR(RetryWhileFull([&] {
    const Status synced = SyncPayload(level);
    return CodeOf(synced) == ErrorCode::kResourceExhausted && !MayWait().ok() ? MayWait() : synced;
  }));
  LUWU_FAILPOINT("persist.commit.after_sync");
  Catalogue::Batch batch;
  for (const StoredGeneration& generation : generations) batch.Put(number_, generation);
  batch.Put(number_, stored);
  syncs_ = level == SyncLevel::kSynced;
  RETURN_IF_ERROR(WriteCatalogue(&batch, syncs_));
  LUWU_FAILPOINT("persist.commit.after");
  const MutexLock lock(mutex_);
  for (const StoredGeneration& generation : generations) {
    index_.Add(generation);
    loose_.erase(generation.generation.place);
  }
  index_.Add(stored);
  return OkStatus();
}

void JobStore::Confirm(uint64_t step) {
  const MutexLock ordered(order_mutex_);
  LUWU_FAILPOINT("persist.confirm");
  if (!Exists().ok()) return;
  Catalogue::Batch batch;
  JobIndex::Garbage garbage;
  std::vector<uint64_t> removed;
  {
    const MutexLock lock(mutex_);
    settled_ = true;
    const auto& points = index_.points();
    auto newest = points.upper_bound(step);
    if (newest == points.begin()) return;
    --newest;
    JobIndex after = index_;
    for (auto point = points.begin(); point != newest; ++point) {
      batch.Delete(number_, point->second);
      after.RemovePoint(point->first);
      removed.push_back(point->first);
    }
    if (removed.empty()) return;
    garbage = after.FindGarbage();
    batch.Delete(number_, garbage);
  }
  // Without it the space stays taken; the next Confirm tries again. Why is in the state. A log
  // whose end was never synced may come back torn after a loss of power: not that of a synced job.
  if (!WriteCatalogue(&batch, syncs_).ok()) return;
  {
    const MutexLock lock(mutex_);
    for (const uint64_t gone : removed) index_.RemovePoint(gone);
  }
  Remove(garbage);
}

std::vector<Point> JobStore::Points() const {
  const MutexLock lock(mutex_);
  std::vector<Point> points;
  for (const auto& [step, stored] : index_.points()) points.push_back(stored.point);
  return points;
}

std::vector<Checkpoint> JobStore::Checkpoints() const {
  const MutexLock lock(mutex_);
  std::vector<Checkpoint> checkpoints;
  for (const auto& [name, stored] : index_.checkpoints()) checkpoints.push_back(stored.checkpoint);
  return checkpoints;
}

StatusOr<std::vector<ShardEntry>> JobStore::EntriesAt(const Point& point) const {
  const MutexLock lock(mutex_);
  const std::optional<StoredPoint> found = index_.Find(point);
  if (!found) {
    return Error(ErrorCode::kNotFound, "job '{}' has no point of step {} and epoch {}",
                 record_.name, point.step, point.epoch);
  }
  std::vector<ShardEntry> entries;
  for (const StoredGeneration& stored : index_.At(*found))
    entries.push_back({stored.shard, stored.generation});
  return entries;
}

Status JobStore::CreateCheckpoint(const Checkpoint& checkpoint) {
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  const uint64_t limit = *parts_.stop_checkpoints_bytes;
  if (const uint64_t used = parts_.state->used_bytes(); limit > 0 && used > limit) {
    return Error(
        ErrorCode::kResourceExhausted,
        "checkpoint '{}': payload takes {}, above {} no checkpoints are made: delete some, "
        "or raise the budget of the storage",
        checkpoint.name, HumanBytes(used), HumanBytes(limit));
  }
  StoredCheckpoint stored{0, checkpoint};
  {
    const MutexLock lock(mutex_);
    if (index_.checkpoints().contains(checkpoint.name)) {
      return Error(ErrorCode::kAlreadyExists, "job '{}' has a checkpoint '{}'", record_.name,
                   checkpoint.name);
    }
    const std::optional<StoredPoint> found = index_.Find(checkpoint.point);
    if (!found) {
      return Error(ErrorCode::kNotFound, "checkpoint '{}': job '{}' has no point of step {}",
                   checkpoint.name, record_.name, checkpoint.point.step);
    }
    stored.branch = found->branch;
    stored.checkpoint.point = found->point;
  }
  LUWU_FAILPOINT("persist.checkpoint");
  RETURN_IF_ERROR(RetryWhileFull([&] { return SyncPayload(SyncLevel::kSynced); }));
  Catalogue::Batch batch;
  batch.Put(number_, stored);
  RETURN_IF_ERROR(WriteCatalogue(&batch, /*sync=*/true));
  const MutexLock lock(mutex_);
  index_.Add(stored);
  return OkStatus();
}

Status JobStore::DeleteCheckpoint(const std::string& name) {
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  Catalogue::Batch batch;
  JobIndex::Garbage garbage;
  {
    const MutexLock lock(mutex_);
    if (!index_.checkpoints().contains(name)) {
      return Error(ErrorCode::kNotFound, "job '{}' has no checkpoint '{}'", record_.name, name);
    }
    const auto held = holds_.find(name);
    if (held != holds_.end() && !held->second.expired()) {
      return Error(ErrorCode::kState,
                   "checkpoint '{}' of job '{}' is being exported: delete it when that is done",
                   name, record_.name);
    }
    if (record_.restoring == name) {
      return Error(ErrorCode::kState,
                   "job '{}' is going back to checkpoint '{}': delete it when that is done",
                   record_.name, name);
    }
    holds_.erase(name);
    deleting_ = name;
    JobIndex after = index_;
    after.RemoveCheckpoint(name);
    garbage = after.FindGarbage();
  }
  batch.DeleteCheckpoint(number_, name);
  batch.Delete(number_, garbage);
  // Synced: its space may be overwritten at once, and then it must not be there again.
  const Status written = WriteCatalogue(&batch, /*sync=*/true);
  {
    const MutexLock lock(mutex_);
    deleting_.clear();
    if (written.ok()) index_.RemoveCheckpoint(name);
  }
  RETURN_IF_ERROR(written);
  Remove(garbage);
  return OkStatus();
}

StatusOr<HeldCheckpoint> JobStore::HoldCheckpoint(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = index_.checkpoints().find(name);
  if (found == index_.checkpoints().end() || name == deleting_) {
    return Error(ErrorCode::kNotFound, "job '{}' has no checkpoint '{}'", record_.name, name);
  }
  HeldCheckpoint held;
  held.checkpoint = found->second.checkpoint;
  for (const StoredGeneration& stored : index_.At({found->second.branch, held.checkpoint.point})) {
    held.entries.push_back({stored.shard, stored.generation});
  }
  std::weak_ptr<const void>& hold = holds_[name];
  held.hold = hold.lock();
  if (held.hold == nullptr) {
    held.hold = std::make_shared<const std::string>(name);
    hold = held.hold;
  }
  return held;
}

Status JobStore::RollBack(const Point& point, uint64_t epoch) {
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  Drain();
  Catalogue::Batch batch;
  JobIndex::Garbage garbage;
  Branch branch;
  StoredPoint kept;
  StoredJob job;
  {
    const MutexLock lock(mutex_);
    const std::optional<StoredPoint> found = index_.Find(point);
    if (!found) {
      return Error(ErrorCode::kNotFound, "job '{}' has no point of step {} and epoch {}",
                   record_.name, point.step, point.epoch);
    }
    branch = index_.Fork(*found);
    kept = {branch.number, found->point};
    JobIndex after = index_;
    after.SwitchTo(branch, kept);
    garbage = after.FindGarbage();
    for (const auto& [step, stored] : index_.points()) batch.Delete(number_, stored);
    job = {number_, record_, reserve_bytes_, branch.number};
    job.record.epoch = epoch;
    job.record.restoring.clear();
  }
  batch.Put(number_, branch);
  batch.Put(number_, kept);
  batch.Put(job);
  batch.Delete(number_, garbage);
  LUWU_FAILPOINT("persist.rollback.before");
  RETURN_IF_ERROR(RetryWhileFull([&] { return SyncPayload(SyncLevel::kSynced); }));
  RETURN_IF_ERROR(WriteCatalogue(&batch, /*sync=*/true));
  LUWU_FAILPOINT("persist.rollback.after");
  std::unordered_map<uint64_t, uint64_t> loose;
  {
    const MutexLock lock(mutex_);
    record_ = job.record;
    index_.SwitchTo(branch, kept);
    settled_ = true;
    loose.swap(loose_);
  }
  Remove(garbage);
  for (const auto& [place, bytes] : loose) Free(place, bytes);
  return OkStatus();
}

Status JobStore::NoteRestore(const std::string& checkpoint) {
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  StoredJob job;
  {
    const MutexLock lock(mutex_);
    if (record_.restoring == checkpoint) return OkStatus();
    job = {number_, record_, reserve_bytes_, index_.branch()};
  }
  job.record.restoring = checkpoint;
  Catalogue::Batch batch;
  batch.Put(job);
  RETURN_IF_ERROR(WriteCatalogue(&batch, /*sync=*/true));
  const MutexLock lock(mutex_);
  record_.restoring = checkpoint;
  return OkStatus();
}

}  // namespace luwu::persist
