#include "server/store/served_window.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/wire/shard_header.h"
#include "common/wire/window.h"
#include "server/store/served_header.h"

namespace luwu {
namespace {

constexpr uint64_t kNoVersion = std::numeric_limits<uint64_t>::max();

constexpr uint32_t ParityOf(uint64_t version) { return static_cast<uint32_t>(version % 2); }

}  // namespace

StatusOr<std::unique_ptr<ServedWindow>> ServedWindow::Create(const JobSpec& spec,
                                                             const ShardMap& map, uint64_t epoch,
                                                             std::shared_ptr<StorageUse> use) {
  LUWU_CHECK(spec.optimizer.master_format != MasterFormat::kSplit,
             "the served copies of split masters are always in memory");
  auto window = std::make_unique<ServedWindow>(Private{}, spec, map, epoch, std::move(use));
  ASSIGN_OR_RETURN(window->region_,
                   transport::LocalRegion::Create("luwu-weights", map.weights_bytes(),
                                                  transport::Access::kRemoteRead));
  return window;
}

uint64_t ServedWindow::TableBytesFor(const ShardMap& map) {
  if (!map.has_window()) return 0;
  constexpr uint64_t kListNode = 4 * sizeof(void*);
  const uint64_t copy = sizeof(Copy) + sizeof(StoredGeneration) + 2 * sizeof(CopyId);
  return map.shard_count() * 2 * copy + map.window_slots() * (sizeof(Slot) + kListNode);
}

ServedWindow::ServedWindow(Private, const JobSpec& spec, const ShardMap& map, uint64_t epoch,
                           std::shared_ptr<StorageUse> use)
    : spec_(spec), map_(map), epoch_(epoch), use_(std::move(use)) {
  MutexLock lock(mutex_);
  copies_.resize(map.shard_count());
  slots_.resize(map.window_slots());
  for (uint32_t slot = map.window_slots(); slot-- > 0;) free_.push_back(slot);
}

uint64_t ServedWindow::PayloadBytes(uint32_t index) const {
  return map_.shards()[index].elements * DTypeBytes(spec_.served_dtype);
}

std::byte* ServedWindow::SlotData(uint32_t slot) const {
  return region_->span().data() + map_.window_payload_offset(slot);
}

void ServedWindow::SetHooks(CopyHooks hooks) {
  MutexLock lock(mutex_);
  hooks_ = std::move(hooks);
}

void ServedWindow::Cancel() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
}

void ServedWindow::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  hooks_ = {};
  changed_.NotifyAll();
  while (in_flight_ > 0) changed_.Wait(mutex_);  // the storage ends every transfer
}

uint32_t ServedWindow::TakeSlot(CopyId holder, Phase phase) {
  if (free_.empty()) FreeSlot(held_.front());
  const uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot].phase = phase;
  slots_[slot].holder = holder;
  slots_[slot].residence = ++residences_;
  CopyOf(holder).slot = slot;
  return slot;
}

void ServedWindow::FreeSlot(uint32_t number) {
  Slot& slot = slots_[number];
  Copy& copy = CopyOf(slot.holder);
  if (slot.phase == Phase::kHeld) {
    held_.erase(slot.place);
    moved_.push_back(slot.holder);
  }
  slot.phase = Phase::kFree;
  if (copy.slot == number) copy.slot = kNowhere;
  WriteHeader(number);  // before anything else is written to the slot
  free_.push_back(number);
}

void ServedWindow::Hold(uint32_t number) {
  Slot& slot = slots_[number];
  slot.phase = Phase::kHeld;
  slot.place = held_.insert(held_.end(), number);
}

// Of what may be read of the slot now.
void ServedWindow::WriteHeader(uint32_t number) {
  const Slot& slot = slots_[number];
  const LocalShard& shard = map_.shards()[slot.holder.index];
  const Copy& copy = CopyOf(slot.holder);
  const bool readable = copy.published && copy.slot == number && slot.phase != Phase::kFree;
  ShardHeader header = {};
  header.dtype = static_cast<uint8_t>(spec_.served_dtype);
  header.epoch = epoch_;
  header.version = readable ? copy.version : kNoVersion;
  header.layer = shard.layer;
  header.shard = shard.shard;
  header.payload_bytes = PayloadBytes(slot.holder.index);
  header.payload_crc32c = copy.crc32c;
  header.residence = slot.residence;
  SealShardHeader(&header);
  StoreHeader(region_->span().data() + ShardMap::window_header_offset(number), header);
}

StatusOr<std::byte*> ServedWindow::Begin(uint32_t index, uint64_t version) {
  const CopyId id = {index, ParityOf(version)};
  std::shared_ptr<StoredGeneration> former;  // let go of without the lock
  MutexLock lock(mutex_);
  Copy& copy = CopyOf(id);
  copy.published = false;
  // While its bytes are on their way, the slot is the storage's.
  const auto in_transfer = [&]() LUWU_REQUIRES(mutex_) {
    return copy.slot != kNowhere && slots_[copy.slot].phase != Phase::kHeld;
  };
  ++beginning_;
  while (failed_.ok() && !stopping_ && in_transfer()) changed_.Wait(mutex_);
  if (copy.slot != kNowhere && !in_transfer()) FreeSlot(copy.slot);
  while (failed_.ok() && !stopping_ && !CanTakeSlot()) changed_.Wait(mutex_);
  --beginning_;
  RETURN_IF_ERROR(failed_);
  if (stopping_) return Error(ErrorCode::kCancelled, "the job ends");
  former = std::exchange(copy.stored, nullptr);
  return SlotData(TakeSlot(id, Phase::kFilling));
}

void ServedWindow::Finish(uint32_t index, uint64_t version) {
  const auto stored = std::make_shared<StoredGeneration>(use_);
  uint32_t slot = 0;
  {
    MutexLock lock(mutex_);
    Copy& copy = CopyOf({index, ParityOf(version)});
    slot = copy.slot;
    LUWU_CHECK(slot != kNowhere && slots_[slot].phase == Phase::kFilling, "what ends was begun");
    slots_[slot].phase = Phase::kStoring;
    copy.stored = stored;
    ++in_flight_;
    ++counters_.stores;
    counters_.written_bytes += PayloadBytes(index);
  }
  use_->storage().Write(index, SlotData(slot), PayloadBytes(index),
                        [this, slot, stored](const StatusOr<persist::Generation>& result) {
                          EndStore(slot, stored, result);
                        });
}

void ServedWindow::Abandon(uint32_t index, uint64_t version) {
  std::vector<Load> loads;
  {
    MutexLock lock(mutex_);
    const Copy& copy = CopyOf({index, ParityOf(version)});
    LUWU_CHECK(copy.slot != kNowhere && slots_[copy.slot].phase == Phase::kFilling,
               "what is abandoned was begun");
    FreeSlot(copy.slot);
    loads = Pump();
    changed_.NotifyAll();
  }
  Run(loads);
}

uint32_t ServedWindow::CopyToNext(uint32_t index, uint64_t version) {
  const CopyId to = {index, ParityOf(version + 1)};
  std::shared_ptr<StoredGeneration> former;
  MutexLock lock(mutex_);
  const Copy& source = CopyOf({index, ParityOf(version)});
  LUWU_CHECK(source.stored != nullptr, "there is a copy to go on with");
  Copy& target = CopyOf(to);
  target.published = false;
  if (target.slot != kNowhere) {
    const uint32_t number = target.slot;
    // A transfer of the bytes of long ago ends by itself, and frees the slot.
    if (slots_[number].phase == Phase::kHeld) {
      FreeSlot(number);
    } else {
      WriteHeader(number);
      target.slot = kNowhere;
    }
  }
  former = std::exchange(target.stored, source.stored);
  target.crc32c = source.crc32c;
  changed_.NotifyAll();
  return source.crc32c;
}

void ServedWindow::Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c) {
  MutexLock lock(mutex_);
  const CopyId id = {index, ParityOf(version)};
  Copy& copy = CopyOf(id);
  copy.version = version;
  copy.crc32c = payload_crc32c;
  copy.published = true;
  // The slot of the version before goes with bytes that are the same.
  const Copy& before = CopyOf({index, 1 - id.parity});
  if (copy.slot == kNowhere && before.slot != kNowhere && before.stored == copy.stored &&
      slots_[before.slot].phase == Phase::kHeld) {
    FreeSlot(before.slot);
    Hold(TakeSlot(id, Phase::kHeld));  // the one that was freed last
  }
  if (copy.slot != kNowhere) WriteHeader(copy.slot);
  moved_.push_back(id);
}

uint64_t ServedWindow::Place(CopyId id) const {
  MutexLock lock(mutex_);
  const Copy& copy = CopyOf(id);
  if (!copy.published || copy.slot == kNowhere) return 0;
  const Slot& slot = slots_[copy.slot];
  if (slot.phase == Phase::kLoading) return 0;
  return WindowPlace{slot.residence, copy.slot}.word();
}

std::vector<CopyId> ServedWindow::TakeMoved() {
  MutexLock lock(mutex_);
  return std::exchange(moved_, {});
}

bool ServedWindow::Want(CopyId id) {
  std::vector<Load> loads;
  {
    MutexLock lock(mutex_);
    Copy& copy = CopyOf(id);
    if (!copy.published || stopping_ || !failed_.ok()) return false;
    if (copy.slot != kNowhere) {
      const Slot& slot = slots_[copy.slot];
      if (slot.phase == Phase::kLoading) return false;
      if (slot.phase == Phase::kHeld) held_.splice(held_.end(), held_, slot.place);
      moved_.push_back(id);
      return true;
    }
    if (copy.wanted) return false;
    copy.wanted = true;
    ++counters_.wants;
    wanted_.push_back(id);
    loads = Pump();
  }
  Run(loads);
  return false;
}

std::vector<ServedWindow::Load> ServedWindow::Pump() {
  std::vector<Load> loads;
  if (stopping_ || !failed_.ok()) return loads;
  while (!wanted_.empty() && beginning_ == 0 && CanTakeSlot()) {
    const CopyId id = wanted_.front();
    Copy& copy = CopyOf(id);
    // Still on its way to the disk under another number: EndStore comes back to it.
    if (copy.published && copy.slot == kNowhere && !copy.stored->written()) break;
    wanted_.pop_front();
    copy.wanted = false;
    if (!copy.published || copy.slot != kNowhere) continue;
    loads.push_back({id, TakeSlot(id, Phase::kLoading), copy.stored});
    ++in_flight_;
    ++counters_.loads;
    counters_.read_bytes += PayloadBytes(id.index);
  }
  return loads;
}

void ServedWindow::Run(const std::vector<Load>& loads) {
  for (const Load& load : loads) Start(load);
}

void ServedWindow::Start(const Load& load) {
  const StatusOr<persist::Generation> generation = load.from->Wait();  // has been written
  if (!generation.ok()) {
    EndLoad(load, generation.status());
    return;
  }
  use_->storage().Read({load.id.index, *generation}, SlotData(load.slot),
                       [this, load](const Status& status) { EndLoad(load, status); });
}

void ServedWindow::EndLoad(const Load& load, const Status& status) {
  if (!status.ok()) Fail(status);
  std::vector<Load> loads;
  std::function<void()> moved;
  {
    MutexLock lock(mutex_);
    Copy& copy = CopyOf(load.id);
    if (status.ok() && copy.slot == load.slot && copy.stored == load.from) {
      Hold(load.slot);
      WriteHeader(load.slot);
      moved_.push_back(load.id);
      if (copy.published) moved = hooks_.moved;
    } else {
      FreeSlot(load.slot);
    }
    loads = Pump();
    changed_.NotifyAll();
  }
  Run(loads);
  if (moved) moved();
  EndTransfer();
}

void ServedWindow::EndStore(uint32_t number, const std::shared_ptr<StoredGeneration>& stored,
                            const StatusOr<persist::Generation>& result) {
  if (!result.ok()) Fail(result.status());
  stored->Set(result);
  std::vector<Load> loads;
  {
    MutexLock lock(mutex_);
    const Copy& copy = CopyOf(slots_[number].holder);
    if (result.ok() && copy.slot == number && copy.stored == stored) {
      Hold(number);
    } else {
      FreeSlot(number);
    }
    loads = Pump();
    changed_.NotifyAll();
  }
  Run(loads);
  EndTransfer();
}

void ServedWindow::Fail(const Status& why) {
  std::function<void(const Status&)> failed;
  {
    MutexLock lock(mutex_);
    if (!failed_.ok()) return;
    failed_ = why;
    failed = hooks_.failed;
    changed_.NotifyAll();
  }
  if (failed) failed(why);
}

void ServedWindow::EndTransfer() {
  MutexLock lock(mutex_);
  --in_flight_;
  changed_.NotifyAll();
}

WindowCounters ServedWindow::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace luwu
