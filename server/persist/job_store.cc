#include "server/persist/job_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

namespace luwu::persist {
namespace {

// Marks the places of small values; the rest is the store's own.
constexpr uint64_t kInlineBit = uint64_t{1} << 63;

constexpr uint32_t kPlacesMax = 3;  // that a write tries before the device is given up

uint64_t Padded(uint64_t bytes) { return AlignUp(bytes, kIoAlignment); }

}  // namespace

// A write on its way.
struct JobStore::Pending {
  uint32_t shard = 0;
  std::byte* data = nullptr;
  Generation generation;
  WriteCallback done;
  bool budgeted = false;
  bool placed = false;
  uint32_t failures = 0;  // places at which the device failed
};

JobStore::JobStore(Parts parts, Catalogue::Job job)
    : parts_(std::move(parts)),
      number_(job.job.number),
      reserve_bytes_(job.job.reserve_bytes),
      record_(std::move(job.job.record)),
      index_(std::move(job.index)) {}

void JobStore::AdoptBuffers(ByteSpan memory) {
  if (parts_.queue != nullptr) parts_.queue->AdoptBuffers(memory);
}

void JobStore::ForgetBuffers(ByteSpan memory) {
  if (parts_.queue != nullptr) parts_.queue->ForgetBuffers(memory);
}

PayloadStore* JobStore::StoreOf(uint64_t place) const {
  return (place & kInlineBit) != 0 ? parts_.values.get() : parts_.extents.get();
}

std::string JobStore::Describe(uint32_t shard, const Generation& generation) const {
  return fmt::format("job '{}' shard {} step {} ({})", record().name, shard, generation.step,
                     StoreOf(generation.place)->Describe(generation.place & ~kInlineBit));
}

Status JobStore::Recover() {
  JobIndex::Garbage garbage;
  std::vector<StoredGeneration> kept;
  {
    const MutexLock lock(mutex_);
    garbage = index_.FindGarbage();
    index_.Remove(garbage);
    kept = index_.Generations();
  }
  for (const StoredGeneration& stored : kept) {
    const Generation& generation = stored.generation;
    const Status marked =
        StoreOf(generation.place)->MarkUsed(generation.place & ~kInlineBit, generation.bytes);
    if (!marked.ok()) return Annotate(marked, fmt::format("job '{}'", record().name));
    parts_.state->AddUsed(Padded(generation.bytes));
  }
  parts_.extents->Recovered();
  parts_.values->Recovered();
  if (garbage.generations.empty() && garbage.branches.empty()) return OkStatus();
  Catalogue::Batch batch;
  batch.Delete(number_, garbage);
  // On a full disk they stay until the next start.
  const Status written = parts_.catalogue->Write(&batch, /*sync=*/false);
  return CodeOf(written) == ErrorCode::kResourceExhausted ? OkStatus() : written;
}

void JobStore::Write(uint32_t shard, std::byte* data, uint64_t bytes, WriteCallback done) {
  auto pending = std::make_shared<Pending>();
  pending->shard = shard;
  pending->data = data;
  pending->generation.bytes = bytes;
  pending->generation.crc32c = Crc32c({data, bytes});
  pending->done = std::move(done);
  {
    const MutexLock lock(mutex_);
    ++under_way_;
  }
  StartSoon(pending);
}

void JobStore::StartSoon(const std::shared_ptr<Pending>& pending) {
  if (Start(pending).ok()) return;
  parts_.state->RetryLater([self = shared_from_this(), pending] {
    Status prepared = self->Prepare(pending.get(), /*may_block=*/true);
    if (prepared.ok()) prepared = self->Start(pending);
    if (CodeOf(prepared) == ErrorCode::kResourceExhausted && !self->MayWait().ok()) {
      prepared = self->MayWait();
    }
    if (!prepared.ok() && CodeOf(prepared) != ErrorCode::kResourceExhausted) {
      self->Finish(pending, prepared);
    }
    return prepared;
  });
}

Status JobStore::MayWait() const {
  if (!refuses_waiting_ && !being_deleted_) return OkStatus();
  return Error(ErrorCode::kCancelled, "job '{}' has ended and waits for no space", record().name);
}

Status JobStore::Prepare(Pending* pending, bool may_block) {
  RETURN_IF_ERROR(parts_.state->Usable());
  RETURN_IF_ERROR(Exists());
  Generation& generation = pending->generation;
  if (!pending->budgeted) {
    RETURN_IF_ERROR(parts_.state->TakeBudget(Padded(generation.bytes)));
    pending->budgeted = true;
  }
  const bool is_inline = generation.bytes < kInlineBytes;
  PayloadStore* const store = is_inline ? parts_.values.get() : parts_.extents.get();
  RETURN_IF_ERROR(MakeRoom(*pending, is_inline, may_block));
  if (pending->placed) return OkStatus();
  uint64_t place = 0;
  if (!store->Take(generation.bytes, &place)) {
    return Error(ErrorCode::kResourceExhausted, "job '{}': no room for {} in {}", record().name,
                 HumanBytes(generation.bytes), store->Describe(0));
  }
  generation.place = is_inline ? place | kInlineBit : place;
  pending->placed = true;
  return OkStatus();
}

// A file that has room ahead takes none of the file system's.
Status JobStore::MakeRoom(const Pending& pending, bool is_inline, bool may_block) {
  PayloadStore* const store = is_inline ? parts_.values.get() : parts_.extents.get();
  const uint64_t bytes = pending.placed ? 0 : pending.generation.bytes;
  if (!store->HasRoom(bytes)) RETURN_IF_ERROR(parts_.state->PayloadRoom());
  return may_block ? store->Grow(bytes) : OkStatus();
}

Status JobStore::Start(const std::shared_ptr<Pending>& pending) {
  RETURN_IF_ERROR(Prepare(pending.get(), /*may_block=*/false));
  const Generation& generation = pending->generation;
  const int injected = LUWU_FAILPOINT("persist.write");
  if (injected == ENOSPC) {
    return Error(ErrorCode::kResourceExhausted, "writing {}: {}",
                 Describe(pending->shard, generation), std::strerror(injected));
  }
  if (injected != 0) {
    OnWritten(pending, injected);
    return OkStatus();
  }
  StoreOf(generation.place)
      ->Write(generation.place & ~kInlineBit, pending->data, generation.bytes,
              [self = shared_from_this(), pending](int error) {
                const int injected_late = LUWU_FAILPOINT("persist.written");
                self->OnWritten(pending, error != 0 ? error : injected_late);
              });
  return OkStatus();
}

void JobStore::OnWritten(const std::shared_ptr<Pending>& pending, int error) {
  const Generation& generation = pending->generation;
  if (error == ENOSPC || error == EDQUOT) {
    auto first = std::make_shared<bool>(true);
    parts_.state->RetryLater([self = shared_from_this(), pending, first, error] {
      Status status = OkStatus();
      if (std::exchange(*first, false)) {
        // It has just failed: say so, and wait before it is tried again.
        status = self->parts_.state->Usable();
        if (status.ok()) {
          return Error(ErrorCode::kResourceExhausted, "writing {}: {}",
                       self->Describe(pending->shard, pending->generation), std::strerror(error));
        }
      }
      if (status.ok()) status = self->Prepare(pending.get(), /*may_block=*/true);
      if (status.ok()) status = self->Start(pending);
      if (CodeOf(status) == ErrorCode::kResourceExhausted && !self->MayWait().ok()) {
        status = self->MayWait();
      }
      if (!status.ok() && CodeOf(status) != ErrorCode::kResourceExhausted) {
        self->Finish(pending, status);
      }
      return status;
    });
    return;
  }
  if (error != 0) {
    WriteElsewhere(pending, error);
    return;
  }
  parts_.state->written_bytes += Padded(generation.bytes);
  {
    const MutexLock lock(mutex_);
    loose_[generation.place] = generation.bytes;
  }
  Finish(pending, generation);
}

// Nobody has been told of what was to be written, so a fresh place is as good. Once some have
// failed, it is not the place.
void JobStore::WriteElsewhere(const std::shared_ptr<Pending>& pending, int error) {
  const Generation& generation = pending->generation;
  const std::string what =
      fmt::format("writing {}: {}", Describe(pending->shard, generation), std::strerror(error));
  const bool elsewhere =
      StoreOf(generation.place)->Abandon(generation.place & ~kInlineBit, generation.bytes);
  if (elsewhere) pending->placed = false;
  if (elsewhere && ++pending->failures < kPlacesMax) {
    LogWarning("storage_write_failed", "error={} action=\"another place\"", what);
    StartSoon(pending);
    return;
  }
  const std::string& device = parts_.state->device();
  const Status failed =
      elsewhere ? Error(ErrorCode::kCorrupt, "{}, after {} other places failed too; device {}",
                        what, pending->failures - 1, device)
                : Error(ErrorCode::kCorrupt, "{}; device {}", what, device);
  parts_.state->Fail(MessageOf(failed));
  Finish(pending, failed);
}

void JobStore::Finish(const std::shared_ptr<Pending>& pending, StatusOr<Generation> result) {
  if (!result.ok()) {
    const Generation& generation = pending->generation;
    if (pending->placed) {
      StoreOf(generation.place)->Give(generation.place & ~kInlineBit, generation.bytes);
    }
    if (pending->budgeted) parts_.state->GiveBudget(Padded(generation.bytes));
  }
  pending->done(std::move(result));
  EndOne();
}

void JobStore::EndOne() {
  const MutexLock lock(mutex_);
  if (--under_way_ == 0) idle_.NotifyAll();
}

// Counted first: who stops the storage waits for it, or it sees that it was stopped.
bool JobStore::BeginAgain() {
  {
    const MutexLock lock(mutex_);
    ++under_way_;
  }
  if (CodeOf(parts_.state->Usable()) != ErrorCode::kCancelled) return true;
  EndOne();
  return false;
}

Status JobStore::Exists() const {
  const MutexLock lock(mutex_);
  if (!destroyed_) return OkStatus();
  return Error(ErrorCode::kNotFound, "job '{}' was deleted", record_.name);
}

void JobStore::Read(const ShardEntry& entry, std::byte* data, ReadCallback done) {
  if (const Status exists = Exists(); !exists.ok()) {
    parts_.threads->Do([exists, done = std::move(done)] { done(exists); });
    return;
  }
  ReadTry(entry, data, /*last=*/false, std::move(done));
}

void JobStore::ReadTry(const ShardEntry& entry, std::byte* data, bool last, ReadCallback done) {
  const Generation& generation = entry.generation;
  const int injected = LUWU_FAILPOINT("persist.read");
  auto check = [self = shared_from_this(), entry, data, injected, last,
                done = std::move(done)](int error) mutable {
    // Not on the disk's thread, which has the next transfers to start.
    self->parts_.threads->Do([self, entry, data, last, done = std::move(done),
                              error = injected != 0 ? injected : error]() mutable {
      if (error == EIO && !last && self->BeginAgain()) {
        LogWarning("storage_read_failed", "what=\"{}\" action=\"once more\"",
                   self->Describe(entry.shard, entry.generation));
        self->ReadTry(entry, data, /*last=*/true, std::move(done));
        self->EndOne();
        return;
      }
      done(self->CheckRead(entry, data, error));
    });
  };
  StoreOf(generation.place)
      ->Read(generation.place & ~kInlineBit, data, generation.bytes, std::move(check));
}

Status JobStore::CheckRead(const ShardEntry& entry, const std::byte* data, int error) {
  const Generation& generation = entry.generation;
  std::string problem;
  if (error != 0) {
    problem = error == ENODATA ? "it ends too early" : std::strerror(error);
  } else {
    parts_.state->read_bytes += Padded(generation.bytes);
    const uint32_t crc = Crc32c({data, generation.bytes});
    if (crc == generation.crc32c) return OkStatus();
    problem = fmt::format("CRC32C {:08x} was written, {:08x} is read", generation.crc32c, crc);
  }
  RETURN_IF_ERROR(Exists());
  const Status damaged =
      Error(ErrorCode::kCorrupt, "reading {}: {}; go back to a checkpoint or restore an export",
            Describe(entry.shard, generation), problem);
  parts_.state->ReportDamage(MessageOf(damaged));
  return damaged;
}

void JobStore::Free(uint64_t place, uint64_t bytes) {
  LUWU_FAILPOINT("persist.free");
  StoreOf(place)->Give(place & ~kInlineBit, bytes);
  parts_.state->GiveBudget(Padded(bytes));
}

void JobStore::Discard(const Generation& generation) {
  {
    const MutexLock lock(mutex_);
    const auto found = loose_.find(generation.place);
    LUWU_CHECK(found != loose_.end() && found->second == generation.bytes,
               "what is discarded was written and is in no point");
    loose_.erase(found);
  }
  Free(generation.place, generation.bytes);
}

Status JobStore::SyncPayload(SyncLevel level) {
  const Status synced = parts_.extents->Sync(level);
  if (!synced.ok() && CodeOf(synced) != ErrorCode::kResourceExhausted) {
    parts_.state->Fail(MessageOf(synced));
  }
  return synced;
}

Status JobStore::WriteCatalogue(Catalogue::Batch* batch, bool sync) {
  return RetryWhileFull([&] {
    const Status status = parts_.catalogue->Write(batch, sync);
    if (!status.ok() && CodeOf(status) != ErrorCode::kResourceExhausted) {
      parts_.state->Fail(MessageOf(status));
    }
    return status;
  });
}

void JobStore::Remove(const JobIndex::Garbage& garbage) {
  {
    const MutexLock lock(mutex_);
    index_.Remove(garbage);
  }
  for (const StoredGeneration& stored : garbage.generations)
    Free(stored.generation.place, stored.generation.bytes);
}

JobRecord JobStore::record() const {
  const MutexLock lock(mutex_);
  return record_;
}

uint64_t JobStore::used_bytes() const {
  const MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const StoredGeneration& stored : index_.Generations())
    bytes += Padded(stored.generation.bytes);
  for (const auto& [place, loose] : loose_) bytes += Padded(loose);
  return bytes;
}

Status JobStore::RetryWhileFull(const NodeState::Attempt& attempt) {
  return parts_.state->RetryWhileFull([&] {
    const Status status = attempt();
    if (CodeOf(status) != ErrorCode::kResourceExhausted || !being_deleted_) return status;
    return Error(ErrorCode::kNotFound, "job '{}' is being deleted", record().name);
  });
}

// In a row with whatever changes the catalogue: a record that is written after those of the job
// were taken out would be nobody's.
Status JobStore::Forget() {
  being_deleted_ = true;
  const MutexLock ordered(order_mutex_);
  RETURN_IF_ERROR(Exists());
  Drain();
  Catalogue::Batch batch;
  batch.DeleteJob(number_);
  const Status written = parts_.catalogue->Write(&batch, /*sync=*/true);
  if (!written.ok()) {
    being_deleted_ = false;
    if (CodeOf(written) != ErrorCode::kResourceExhausted) parts_.state->Fail(MessageOf(written));
    return Annotate(written, fmt::format("job '{}' cannot be deleted", record().name));
  }
  const MutexLock lock(mutex_);
  destroyed_ = true;
  return OkStatus();
}

Status JobStore::Destroy() {
  Drain();
  parts_.state->GiveBudget(used_bytes());
  return parts_.extents->Destroy();
}

void JobStore::Drain() {
  const MutexLock lock(mutex_);
  while (under_way_ > 0) idle_.Wait(mutex_);
}

std::vector<StoredGeneration> JobStore::Committed() const {
  const MutexLock lock(mutex_);
  return settled_ ? index_.Generations() : std::vector<StoredGeneration>();
}

bool JobStore::Scrub(const StoredGeneration& stored, const PayloadStore::Pace& pace) {
  const Generation& generation = stored.generation;
  const int injected = LUWU_FAILPOINT("persist.scrub");
  const StatusOr<uint32_t> crc =
      StoreOf(generation.place)->Checksum(generation.place & ~kInlineBit, generation.bytes, pace);
  if (CodeOf(crc.status()) == ErrorCode::kCancelled) return false;
  if (crc.ok() && *crc == generation.crc32c && injected == 0) return true;
  {
    // Not damage when it was freed, and perhaps overwritten, meanwhile.
    const MutexLock lock(mutex_);
    if (!index_.Has(stored)) return true;
  }
  parts_.state->ReportDamage(fmt::format(
      "scrubbing {}: {}", Describe(stored.shard, generation),
      crc.ok() ? "its checksum is not the one that was written" : MessageOf(crc.status())));
  return true;
}

}  // namespace luwu::persist
