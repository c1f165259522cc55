#include "server/step/point_maker.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr uint64_t kHeldPollMs = 20;  // until readers let go of what a point has replaced

}  // namespace

StatusOr<std::unique_ptr<PointMaker>> PointMaker::Create(
    const JobSpec& spec, const ShardMap& map, const ResidencyPlan& plan,
    std::shared_ptr<persist::JobStorage> storage) {
  auto maker = std::make_unique<PointMaker>(Private{});
  maker->storage_ = std::move(storage);
  maker->level_ = spec.durability == Durability::kLogged ? persist::SyncLevel::kLogged
                                                         : persist::SyncLevel::kSynced;
  maker->buffer_bytes_ = plan.buffer_bytes;
  ASSIGN_OR_RETURN(maker->memory_, AllocateHuge(plan.point_buffers * plan.buffer_bytes));
  maker->adopted_ = {maker->storage_, maker->memory_.span()};
  MutexLock lock(maker->mutex_);
  for (const LocalShard& shard : map.shards()) {
    maker->shards_.push_back({ShapeOf(spec, shard), std::nullopt, nullptr});
  }
  for (uint32_t i = 0; i < plan.point_buffers; ++i) maker->free_.push_back(i);
  return maker;
}

PointMaker::~PointMaker() { Stop(); }

void PointMaker::Start(const ServedCopies* weights, Hooks hooks) {
  weights_ = weights;
  hooks_ = std::move(hooks);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "luwu-point");
}

void PointMaker::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
    while (writing_ > 0) wake_.Wait(mutex_);  // the storage ends every transfer
  }
  if (!thread_.joinable()) return;
  LUWU_CHECK(thread_.get_id() != std::this_thread::get_id(), "a job is drained by its owner");
  thread_.join();
}

void PointMaker::Begin(const persist::Point& point) {
  MutexLock lock(mutex_);
  points_.push_back(point);
  wake_.NotifyAll();
}

void PointMaker::Add(PointItem item) {
  MutexLock lock(mutex_);
  items_.push_back(std::move(item));
  wake_.NotifyAll();
}

void PointMaker::Confirm(uint64_t step) {
  MutexLock lock(mutex_);
  confirm_ = std::max(confirm_.value_or(0), step);
  wake_.NotifyAll();
}

void PointMaker::SetRestored(uint32_t index, uint64_t applied,
                             std::shared_ptr<StoredGeneration> generation) {
  MutexLock lock(mutex_);
  shards_[index].applied = applied;
  shards_[index].generation = std::move(generation);
}

uint64_t PointMaker::written_bytes() const {
  MutexLock lock(mutex_);
  return written_bytes_;
}

void PointMaker::Loop() {
  while (true) {
    std::optional<PointItem> item;
    std::optional<uint64_t> confirmed;
    bool complete = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      complete = !failed_ && !points_.empty() && handled_ == shards_.size();
      if (!complete && !items_.empty()) {
        item = std::move(items_.front());
        items_.pop_front();
      } else if (!complete && confirm_ && MayConfirm()) {
        confirmed = std::exchange(confirm_, std::nullopt);
        while (!replaced_.empty() && replaced_.front().first <= *confirmed) replaced_.pop_front();
      } else if (!complete) {
        confirm_ ? void(wake_.WaitUntil(mutex_, DeadlineAfter(kHeldPollMs))) : wake_.Wait(mutex_);
        continue;
      }
    }
    if (complete) Finish();
    if (item) Handle(*item);
    if (confirmed) storage_->Confirm(*confirmed);
  }
}

void PointMaker::Handle(const PointItem& item) {
  bool unchanged = false;
  {
    MutexLock lock(mutex_);
    unchanged = failed_ || shards_[item.index].applied == item.applied;
  }
  if (item.pin.stored != nullptr) {
    if (!unchanged) HandleSpilled(item);
  } else if (unchanged) {
    hooks_.unpin(item);
  } else {
    HandleResident(item);
  }
  MutexLock lock(mutex_);
  ++handled_;
}

void PointMaker::HandleSpilled(const PointItem& item) {
  const StatusOr<persist::Generation> generation = item.pin.stored->Wait();
  if (!generation.ok()) {
    NoteFailure(generation.status());
    return;
  }
  MutexLock lock(mutex_);
  AddChanged(item, *generation, item.pin.stored);
}

void PointMaker::HandleResident(const PointItem& item) {
  const std::optional<uint32_t> number = TakeBuffer();
  if (!number) return;  // stopping
  StateShape shape;
  {
    MutexLock lock(mutex_);
    shape = shards_[item.index].shape;
  }
  std::byte* const data = buffer(*number);
  const optim::StateArrays to = shape.ArraysAt(data);
  for (uint32_t i = 0; i < optim::kStateArraysMax && to.data[i] != nullptr; ++i) {
    std::memcpy(to.data[i], item.pin.arrays.data[i], shape.array_bytes[i]);
  }
  if (shape.served_bytes > 0) {
    std::memcpy(data + shape.generation_bytes, weights_->Payload(item.index, item.served_version),
                shape.served_bytes);
  }
  hooks_.unpin(item);
  storage_->Write(item.index, data, shape.stored_bytes(),
                  [this, item, number = *number](StatusOr<persist::Generation> result) {
                    EndWrite(item, number, std::move(result));
                  });
}

std::optional<uint32_t> PointMaker::TakeBuffer() {
  MutexLock lock(mutex_);
  while (free_.empty() && !stopping_) wake_.Wait(mutex_);
  if (stopping_) return std::nullopt;
  const uint32_t number = free_.back();
  free_.pop_back();
  ++writing_;
  return number;
}

void PointMaker::EndWrite(const PointItem& item, uint32_t buffer,
                          StatusOr<persist::Generation> result) {
  if (!result.ok()) NoteFailure(result.status());
  MutexLock lock(mutex_);
  if (result.ok()) {
    written_bytes_ += result->bytes;
    AddChanged(item, *result, nullptr);
  }
  free_.push_back(buffer);
  --writing_;
  wake_.NotifyAll();
}

void PointMaker::AddChanged(const PointItem& item, persist::Generation generation,
                            std::shared_ptr<StoredGeneration> hold) {
  generation.step = points_.front().step;
  generation.applied = item.applied;
  changed_.push_back({{item.index, generation}, std::move(hold)});
}

void PointMaker::Finish() {
  persist::Point point;
  std::vector<Changed> changed;
  {
    MutexLock lock(mutex_);
    while (writing_ > 0) wake_.Wait(mutex_);
    if (failed_ || stopping_) return;
    point = points_.front();
    changed.swap(changed_);
  }
  std::vector<persist::ShardEntry> entries;
  for (const Changed& each : changed) entries.push_back(each.entry);
  const Status committed = storage_->Commit(point, entries, level_);
  {
    MutexLock lock(mutex_);
    if (committed.ok()) {
      NoteCommitted(point, changed);
    } else {
      for (const Changed& each : changed) {
        if (each.generation == nullptr) storage_->Discard(each.entry.generation);
      }
    }
    points_.pop_front();
    handled_ = 0;
    if (stopping_) return;
  }
  committed.ok() ? hooks_.stored(point) : NoteFailure(committed);
}

void PointMaker::NoteCommitted(const persist::Point& point, const std::vector<Changed>& changed) {
  for (const Changed& each : changed) {
    Shard& shard = shards_[each.entry.shard];
    shard.applied = each.entry.generation.applied;
    if (each.generation == nullptr) continue;
    each.generation->MarkCommitted();
    if (shard.generation != nullptr) {
      replaced_.emplace_back(point.step, std::move(shard.generation));
    }
    shard.generation = each.generation;
  }
}

bool PointMaker::MayConfirm() const {
  return std::none_of(replaced_.begin(), replaced_.end(),
                      [this](const auto& each) LUWU_REQUIRES(mutex_) {
                        return each.first <= *confirm_ && each.second.use_count() > 1;
                      });
}

void PointMaker::NoteFailure(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(failed_, true) || stopping_) return;
  }
  hooks_.failed(why);
}

}  // namespace luwu
