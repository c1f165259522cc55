// Payload of one job as values of a RocksDB, in numbered slots that are used again: a slot is
// overwritten only when nothing refers to it. Two uses: the engine `rocksdb_values`, whose database
// has no log, so that a commit flushes it; and small values in the catalogue, whose log every
// commit syncs. Owned by the job's storage; threads and failures as PayloadStore says.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include <rocksdb/db.h>

#include "common/base/sync.h"
#include "server/persist/payload_store.h"
#include "server/persist/work_threads.h"

namespace luwu::persist {

class SlotStore final : public PayloadStore {
 public:
  enum class Durability : uint8_t {
    kByLog,    // the writer of the log syncs it
    kByFlush,  // no log
  };
  // Both outlive the store.
  SlotStore(rocksdb::DB* db, WorkThreads* threads, uint32_t job, Durability durability)
      : db_(db), threads_(threads), job_(job), durability_(durability) {}

  Status MarkUsed(uint64_t place, uint64_t bytes) override;
  void Recovered() override;
  bool HasRoom(uint64_t) const override { return false; }
  bool Take(uint64_t bytes, uint64_t* place) override;
  Status Grow(uint64_t bytes) override;
  void Give(uint64_t place, uint64_t bytes) override;
  bool Abandon(uint64_t, uint64_t) override { return false; }
  void Write(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) override;
  void Read(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) override;
  StatusOr<uint32_t> Checksum(uint64_t place, uint64_t bytes, const Pace& pace) override;
  Status Sync(SyncLevel level) override;
  Status Destroy() override;
  uint64_t allocated_bytes() const override;
  std::string Describe(uint64_t place) const override;

 private:
  int Get(uint64_t place, uint64_t bytes, rocksdb::PinnableSlice* value) const;

  rocksdb::DB* const db_;
  WorkThreads* const threads_;
  const uint32_t job_;
  const Durability durability_;

  mutable Mutex mutex_;
  uint64_t next_ LUWU_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> free_ LUWU_GUARDED_BY(mutex_);
  std::set<uint64_t> marked_ LUWU_GUARDED_BY(mutex_);  // until Recovered
};

}  // namespace luwu::persist
