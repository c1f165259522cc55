#include "server/store/spill_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr uint32_t kNoShard = ~uint32_t{0};

}  // namespace

StatusOr<std::unique_ptr<SpillStore>> SpillStore::Create(const JobSpec& spec, const ShardMap& map,
                                                         const ResidencyPlan& plan,
                                                         std::shared_ptr<StorageUse> use) {
  auto store = std::make_unique<SpillStore>(Private{});
  store->use_ = std::move(use);
  store->buffer_bytes_ = plan.buffer_bytes;
  ASSIGN_OR_RETURN(store->memory_, AllocateHuge(plan.buffers * plan.buffer_bytes));
  store->adopted_ = {store->use_->shared_storage(), store->memory_.span()};
  MutexLock lock(store->mutex_);
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    Slot slot;
    slot.shape = ShapeOf(spec, map.shards()[i]);
    slot.spilled = !plan.resident[i];
    slot.trainable = spec.layers[map.shards()[i].layer].trainable();
    store->slots_.push_back(std::move(slot));
  }
  // The first step: a backward pass ends with the first layer; held sums are applied from there.
  const bool forward = spec.update_mode == UpdateMode::kDeferred;
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    Slot& slot = store->slots_[i];
    if (!slot.spilled || !slot.trainable) continue;
    slot.place = store->order_.insert(forward ? store->order_.end() : store->order_.begin(), i);
  }
  for (const uint32_t index : store->order_) store->slots_[index].turn = ++store->turn_;
  for (uint32_t buffer = 0; buffer < plan.buffers; ++buffer) store->free_.push_back(buffer);
  store->holders_.resize(plan.buffers);
  return store;
}

void SpillStore::SetListener(StateListener* listener) {
  MutexLock lock(mutex_);
  listener_ = listener;
}

void SpillStore::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  listener_ = nullptr;
  changed_.NotifyAll();
  while (in_flight_ > 0) changed_.Wait(mutex_);  // the storage ends every transfer
}

bool SpillStore::Request(uint32_t index) {
  Transfers transfers;
  bool at_hand = false;
  {
    MutexLock lock(mutex_);
    const bool asked_before = slots_[index].wanted;
    at_hand = Want(index, &transfers);
    if (!at_hand && !asked_before) ++counters_.waits;
  }
  Run(transfers);
  return at_hand;
}

Status SpillStore::Open(uint32_t index) {
  Transfers transfers;
  bool at_hand = false;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(failed_);
    at_hand = Want(index, &transfers);
  }
  Run(transfers);
  MutexLock lock(mutex_);
  const Slot& slot = slots_[index];
  while (!at_hand && failed_.ok() && !stopping_ && slot.phase != Phase::kLoaded) {
    changed_.Wait(mutex_);
  }
  if (stopping_) return Error(ErrorCode::kCancelled, "the job ends");
  return failed_;
}

// Kept shards are at hand, too.
bool SpillStore::Want(uint32_t index, Transfers* out) {
  Slot& slot = slots_[index];
  LUWU_CHECK(slot.spilled && slot.phase != Phase::kInUse, "a shard is used by one task at a time");
  if (slot.phase == Phase::kKept) slot.phase = Phase::kLoaded;
  if (!std::exchange(slot.wanted, true) && slot.phase == Phase::kOut) wanted_.push_back(index);
  if (slot.phase == Phase::kLoaded) return true;
  Pump(out);
  return slot.phase == Phase::kLoaded;  // a shard that was never stored is zeros
}

// Gives buffers to those who wait for one, then to what will be wanted next.
void SpillStore::Pump(Transfers* out) {
  if (stopping_ || !failed_.ok()) return;
  while (!wanted_.empty() && FindBuffer(out)) {
    const uint32_t index = wanted_.front();
    wanted_.pop_front();
    StartLoad(index, out);
  }
  if (!reads_ahead_ || !wanted_.empty()) return;
  for (const uint32_t index : order_) {
    if (free_.empty()) break;
    const Slot& slot = slots_[index];
    // What the open step has updated already is not wanted before the step is decided.
    if (slot.phase != Phase::kOut || slot.current == nullptr || slot.next != nullptr) continue;
    ++counters_.read_ahead;
    StartLoad(index, out);
  }
}

// A free one, or the one of what was read ahead and is wanted last; starts to store one that is
// kept when there is no other.
bool SpillStore::FindBuffer(Transfers* out) {
  if (!free_.empty()) return true;
  uint32_t victim = kNoShard;
  uint32_t kept = kNoShard;
  for (const uint32_t index : holders_) {
    const Slot& slot = slots_[index];
    if (slot.phase == Phase::kKept && !slot.wanted) kept = index;
    if (slot.phase != Phase::kLoaded || slot.wanted) continue;
    if (victim == kNoShard || slot.turn > slots_[victim].turn) victim = index;
  }
  if (victim != kNoShard) {
    ++counters_.wasted;
    FreeBuffer(slots_[victim]);
    return true;
  }
  if (kept != kNoShard) {
    slots_[kept].current.reset();
    StartStore(kept, &slots_[kept].current, out);
  }
  return false;
}

void SpillStore::StartLoad(uint32_t index, Transfers* out) {
  Slot& slot = slots_[index];
  slot.buffer = free_.back();
  free_.pop_back();
  holders_[slot.buffer] = index;
  if (slot.current == nullptr) {
    std::memset(BufferOf(slot), 0, slot.shape.stored_bytes());
    slot.phase = Phase::kLoaded;
    out->loaded.push_back(index);
    return;
  }
  slot.phase = Phase::kLoading;
  BeginTransfer();
  ++counters_.loads;
  counters_.read_bytes += slot.shape.stored_bytes();
  out->loads.push_back({index, slot.current});
}

void SpillStore::StartStore(uint32_t index, std::shared_ptr<StoredGeneration>* as, Transfers* out) {
  Slot& slot = slots_[index];
  *as = std::make_shared<StoredGeneration>(use_);
  slot.storing = *as;
  slot.phase = Phase::kStoring;
  BeginTransfer();
  ++counters_.stores;
  counters_.written_bytes += slot.shape.stored_bytes();
  out->stores.push_back(index);
}

void SpillStore::FreeBuffer(Slot& slot) {
  slot.phase = Phase::kOut;
  free_.push_back(slot.buffer);
}

void SpillStore::MoveBack(Slot& slot) {
  slot.turn = ++turn_;
  if (slot.trainable) order_.splice(order_.end(), order_, slot.place);
}

void SpillStore::Run(const Transfers& transfers) {
  for (const Transfers::Load& load : transfers.loads) Load(load);
  for (const uint32_t index : transfers.stores) {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    {
      MutexLock lock(mutex_);
      data = BufferOf(slots_[index]);
      bytes = slots_[index].shape.stored_bytes();
    }
    use_->storage().Write(index, data, bytes, [this, index](StatusOr<persist::Generation> result) {
      EndStore(index, result);
    });
  }
  StateListener* listener = nullptr;
  {
    MutexLock lock(mutex_);
    listener = listener_;
    changed_.NotifyAll();
  }
  if (listener == nullptr) return;
  for (const uint32_t index : transfers.loaded) listener->OnStateLoaded(index);
}

void SpillStore::Load(const Transfers::Load& load) {
  const StatusOr<persist::Generation> generation = load.from->Wait();  // written long ago
  if (!generation.ok()) {
    EndLoad(load.index, generation.status());
    return;
  }
  std::byte* data = nullptr;
  {
    MutexLock lock(mutex_);
    data = BufferOf(slots_[load.index]);
  }
  use_->storage().Read({load.index, *generation}, data,
                       [this, load](const Status& status) { EndLoad(load.index, status); });
}

void SpillStore::EndLoad(uint32_t index, const Status& status) {
  if (!status.ok()) Fail(status);
  Transfers transfers;
  StateListener* listener = nullptr;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    if (status.ok()) {
      slot.phase = Phase::kLoaded;
      if (slot.wanted) listener = listener_;
    } else {
      FreeBuffer(slot);
    }
    Pump(&transfers);
  }
  Run(transfers);
  if (listener != nullptr) listener->OnStateLoaded(index);
  EndTransfer();
}

void SpillStore::EndStore(uint32_t index, const StatusOr<persist::Generation>& result) {
  if (!result.ok()) Fail(result.status());
  Transfers transfers;
  StateListener* listener = nullptr;
  std::shared_ptr<StoredGeneration> stored;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    stored = std::move(slot.storing);
    stored->Set(result);
    if (result.ok() && slot.wanted && slot.current == stored) {
      slot.phase = Phase::kLoaded;  // the buffer has what would be read
      listener = listener_;
    } else {
      FreeBuffer(slot);
      if (slot.wanted) wanted_.push_back(index);
    }
    Pump(&transfers);
  }
  Run(transfers);
  if (listener != nullptr) listener->OnStateLoaded(index);
  stored.reset();  // perhaps the last hold: its space is free again
  EndTransfer();
}

void SpillStore::BeginTransfer() {
  if (in_flight_++ == 0) busy_since_ = std::chrono::steady_clock::now();
}

void SpillStore::EndTransfer() {
  MutexLock lock(mutex_);
  if (--in_flight_ == 0) {
    const std::chrono::duration<double> busy = std::chrono::steady_clock::now() - busy_since_;
    counters_.busy_seconds += busy.count();
  }
  changed_.NotifyAll();
}

void SpillStore::Fail(const Status& why) {
  StateListener* listener = nullptr;
  {
    MutexLock lock(mutex_);
    if (!failed_.ok()) return;
    failed_ = why;
    listener = listener_;
    changed_.NotifyAll();
  }
  if (listener != nullptr) listener->OnStateFailed(why);
}

ShardState SpillStore::Acquire(uint32_t index) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[index];
  LUWU_CHECK(slot.phase == Phase::kLoaded, "state is loaded before it is used");
  slot.phase = Phase::kInUse;
  slot.wanted = false;
  MoveBack(slot);
  const optim::StateArrays arrays = slot.shape.ArraysAt(BufferOf(slot));
  std::byte* served =
      slot.shape.served_bytes == 0 ? nullptr : BufferOf(slot) + slot.shape.generation_bytes;
  return {arrays, arrays, served};
}

void SpillStore::Release(uint32_t index) {
  Transfers transfers;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    LUWU_CHECK(slot.phase == Phase::kInUse, "what is released was acquired");
    StartStore(index, &slot.next, &transfers);
  }
  Run(transfers);
}

void SpillStore::Keep(uint32_t index) {
  Transfers transfers;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    LUWU_CHECK(slot.phase == Phase::kInUse, "what is kept was acquired");
    slot.phase = Phase::kKept;
    Pump(&transfers);
  }
  Run(transfers);
}

void SpillStore::Drop(uint32_t index) {
  Transfers transfers;
  std::shared_ptr<StoredGeneration> dropped;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    dropped = std::move(slot.next);
    slot.next = nullptr;
    if (slot.phase == Phase::kInUse) FreeBuffer(slot);
    Pump(&transfers);
  }
  Run(transfers);
}

void SpillStore::Flip(uint32_t index) {
  Transfers transfers;
  std::shared_ptr<StoredGeneration> former;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    LUWU_CHECK(slot.next != nullptr, "a step that was applied has updated the shard");
    former = std::exchange(slot.current, std::move(slot.next));
    slot.next = nullptr;
    Pump(&transfers);
  }
  Run(transfers);
}

void SpillStore::Forgo(uint32_t index) {
  Transfers transfers;
  {
    MutexLock lock(mutex_);
    if (std::exchange(slots_[index].wanted, false)) std::erase(wanted_, index);
    Pump(&transfers);
  }
  Run(transfers);
}

void SpillStore::Pass(uint32_t index) {
  Transfers transfers;
  {
    MutexLock lock(mutex_);
    Slot& slot = slots_[index];
    if (std::exchange(slot.wanted, false)) std::erase(wanted_, index);
    MoveBack(slot);
    if (slot.phase == Phase::kLoaded) FreeBuffer(slot);
    Pump(&transfers);
  }
  Run(transfers);
}

Status SpillStore::Flush() {
  Transfers transfers;
  {
    MutexLock lock(mutex_);
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].phase != Phase::kKept) continue;
      slots_[index].current.reset();
      StartStore(index, &slots_[index].current, &transfers);
    }
    reads_ahead_ = true;
    Pump(&transfers);
  }
  Run(transfers);
  MutexLock lock(mutex_);
  const auto storing = [this]() LUWU_REQUIRES(mutex_) {
    return std::any_of(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.phase == Phase::kStoring; });
  };
  while (failed_.ok() && !stopping_ && storing()) changed_.Wait(mutex_);
  if (stopping_) return Error(ErrorCode::kCancelled, "the job ends");
  return failed_;
}

std::shared_ptr<StoredGeneration> SpillStore::Current(uint32_t index) const {
  MutexLock lock(mutex_);
  return slots_[index].current;
}

void SpillStore::SetCurrent(uint32_t index, std::shared_ptr<StoredGeneration> generation) {
  MutexLock lock(mutex_);
  slots_[index].current = std::move(generation);
}

optim::StateArrays SpillStore::ArraysAt(uint32_t index, std::byte* base) const {
  MutexLock lock(mutex_);
  return slots_[index].shape.ArraysAt(base);
}

SpillCounters SpillStore::counters() const {
  MutexLock lock(mutex_);
  SpillCounters counters = counters_;
  if (in_flight_ > 0) {
    const std::chrono::duration<double> busy = std::chrono::steady_clock::now() - busy_since_;
    counters.busy_seconds += busy.count();
  }
  return counters;
}

}  // namespace luwu
