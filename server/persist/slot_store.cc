#include "server/persist/slot_store.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/crc32c.h"
#include "server/persist/record.h"
#include "server/persist/rocksdb_files.h"

namespace luwu::persist {
namespace {

constexpr uint64_t kSlotsMax = uint64_t{1} << 40;

int ErrorOf(const rocksdb::Status& status) {
  if (status.ok()) return 0;
  if (status.IsNoSpace()) return ENOSPC;
  if (status.IsNotFound()) return ENODATA;
  return status.IsCorruption() ? EBADMSG : EIO;
}

}  // namespace

Status SlotStore::MarkUsed(uint64_t place, uint64_t) {
  const MutexLock lock(mutex_);
  if (place >= kSlotsMax) return Error(ErrorCode::kCorrupt, "{}: no such slot", Describe(place));
  if (!marked_.insert(place).second)
    return Error(ErrorCode::kCorrupt, "{}: two generations in one slot", Describe(place));
  return OkStatus();
}

void SlotStore::Recovered() {
  const MutexLock lock(mutex_);
  next_ = 0;
  for (const uint64_t slot : marked_) {
    while (next_ < slot) free_.insert(next_++);
    next_ = slot + 1;
  }
  marked_.clear();
}

bool SlotStore::Take(uint64_t, uint64_t* place) {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    *place = next_++;
  } else {
    *place = *free_.begin();
    free_.erase(free_.begin());
  }
  return true;
}

Status SlotStore::Grow(uint64_t) {
  return FromRocksdb(ResumeWithRoom(db_), fmt::format("resuming {}", db_->GetName()));
}

void SlotStore::Give(uint64_t place, uint64_t) {
  const MutexLock lock(mutex_);
  free_.insert(place);
}

void SlotStore::Write(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) {
  threads_->Do([this, place, data, bytes, done = std::move(done)] {
    const void* const start = data;
    const rocksdb::Slice value(static_cast<const char*>(start), bytes);
    rocksdb::WriteOptions options;
    options.disableWAL = durability_ == Durability::kByFlush;
    done(ErrorOf(db_->Put(options, ValueKey(job_, place), value)));
  });
}

int SlotStore::Get(uint64_t place, uint64_t bytes, rocksdb::PinnableSlice* value) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const rocksdb::Status status =
      db_->Get(options, db_->DefaultColumnFamily(), ValueKey(job_, place), value);
  if (status.ok() && value->size() != bytes) return ENODATA;
  return ErrorOf(status);
}

void SlotStore::Read(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) {
  threads_->Do([this, place, data, bytes, done = std::move(done)] {
    rocksdb::PinnableSlice value;
    const int error = Get(place, bytes, &value);
    if (error == 0 && bytes > 0) std::memcpy(data, value.data(), bytes);
    value.Reset();
    done(error);
  });
}

StatusOr<uint32_t> SlotStore::Checksum(uint64_t place, uint64_t bytes, const Pace& pace) {
  if (!pace(bytes)) return Error(ErrorCode::kCancelled, "the storage shuts down");
  rocksdb::PinnableSlice value;
  if (const int error = Get(place, bytes, &value); error != 0) {
    return Error(ErrorCode::kCorrupt, "reading {}: {}", Describe(place), std::strerror(error));
  }
  return Crc32c(std::as_bytes(std::span(value.data(), value.size())));
}

Status SlotStore::Sync(SyncLevel) {
  if (durability_ == Durability::kByLog) return OkStatus();
  // Without a log nothing less survives even the end of the process.
  const auto flush = [this] { return db_->Flush(rocksdb::FlushOptions()); };
  return FromRocksdb(RetryWithRoom(db_, flush), fmt::format("flushing {}", db_->GetName()));
}

Status SlotStore::Destroy() {
  const std::string begin_key = JobPrefix(RecordKind::kInlineValue, job_);
  const std::string end_key = JobPrefix(RecordKind::kInlineValue, job_ + 1);
  const rocksdb::Slice begin(begin_key), end(end_key);
  rocksdb::WriteOptions options;
  options.disableWAL = durability_ == Durability::kByFlush;
  rocksdb::ColumnFamilyHandle* const family = db_->DefaultColumnFamily();
  rocksdb::Status status = db_->DeleteRange(options, family, begin, end);
  if (status.ok() && durability_ == Durability::kByFlush) {
    // The space is wanted now. Values of other jobs stay where they are: moving them needs some.
    rocksdb::CompactRangeOptions compaction;
    compaction.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    compaction.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kDisable;
    status = db_->CompactRange(compaction, family, &begin, &end);
  }
  return FromRocksdb(status, fmt::format("deleting job {} from {}", job_, db_->GetName()));
}

uint64_t SlotStore::allocated_bytes() const { return 0; }

std::string SlotStore::Describe(uint64_t place) const {
  return fmt::format("{} at slot {} of job {}", db_->GetName(), place, job_);
}

}  // namespace luwu::persist
