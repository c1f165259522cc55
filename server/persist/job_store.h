// JobStorage over a payload store, a place for small values, and the catalogue. See job_storage.h
// for who calls it and what fails how.
//
// Locks: order_mutex_ puts what changes points in a row and is held while they wait for the disk;
// mutex_ guards the index and is held for moments. order_mutex_ comes first.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/sync.h"
#include "server/persist/catalogue.h"
#include "server/persist/job_index.h"
#include "server/persist/job_storage.h"
#include "server/persist/node_state.h"
#include "server/persist/payload_store.h"
#include "server/persist/work_threads.h"

namespace luwu::persist {

// Values below this are kept in the catalogue: a file's block would be mostly padding.
inline constexpr uint64_t kInlineBytes = 64 * kKiB;

class JobStore final : public JobStorage, public std::enable_shared_from_this<JobStore> {
 public:
  struct Parts {
    Catalogue* catalogue = nullptr;  // outlives the job
    NodeState* state = nullptr;      // outlives the job
    WorkThreads* threads = nullptr;  // outlives the job; checks what was read
    DiskQueue* queue = nullptr;      // outlives the job; null with `rocksdb_values`
    std::unique_ptr<PayloadStore> extents;
    std::unique_ptr<PayloadStore> values;  // small ones
    const std::atomic<uint64_t>* stop_checkpoints_bytes =
        nullptr;  // of the node's payload; set before use
  };

  JobStore(Parts parts, Catalogue::Job job);
  // Drops what no point needs, and claims the places of the rest. kCorrupt when they overlap.
  Status Recover();

  void Write(uint32_t shard, std::byte* data, uint64_t bytes, WriteCallback done) override;
  void Read(const ShardEntry& entry, std::byte* data, ReadCallback done) override;
  void AdoptBuffers(ByteSpan memory) override;
  void ForgetBuffers(ByteSpan memory) override;
  void Discard(const Generation& generation) override;
  Status Commit(const Point& point, const std::vector<ShardEntry>& changed,
                SyncLevel level) override;
  void Confirm(uint64_t step) override;
  std::vector<Point> Points() const override;
  std::vector<Checkpoint> Checkpoints() const override;
  StatusOr<std::vector<ShardEntry>> EntriesAt(const Point& point) const override;
  Status CreateCheckpoint(const Checkpoint& checkpoint) override;
  Status DeleteCheckpoint(const std::string& name) override;
  StatusOr<HeldCheckpoint> HoldCheckpoint(const std::string& name) override;
  Status RollBack(const Point& point, uint64_t epoch) override;
  Status NoteRestore(const std::string& checkpoint) override;
  void RefuseWaiting(bool refuse) override { refuses_waiting_ = refuse; }
  JobRecord record() const override;

  uint32_t number() const { return number_; }
  uint64_t reserve_bytes() const { return reserve_bytes_; }
  uint64_t allocated_bytes() const { return parts_.extents->allocated_bytes(); }
  uint64_t used_bytes() const override;
  // The catalogue has nothing of the job afterwards, and nothing is written of it any more: what
  // comes later, or waits for space, fails with kNotFound. kNotFound when that was done before.
  Status Forget();
  // After Forget: takes its bytes out of the node's count; the payload of the job is gone
  // afterwards, and reads fail with kNotFound.
  Status Destroy();
  // Returns when no write is under way any more.
  void Drain();

  // For the scrubber. Nothing while it is not known which points will be kept: what a crash left
  // of older ones may be overwritten already.
  std::vector<StoredGeneration> Committed() const;
  // Reads it and compares; damage is reported. False to stop: `pace` said so.
  bool Scrub(const StoredGeneration& stored, const PayloadStore::Pace& pace);

 private:
  struct Pending;

  PayloadStore* StoreOf(uint64_t place) const;
  std::string Describe(uint32_t shard, const Generation& generation) const;
  Status CheckCommit(const Point& point, const std::vector<ShardEntry>& changed) const
      LUWU_REQUIRES(mutex_);

  // kResourceExhausted: not started.
  Status Start(const std::shared_ptr<Pending>& pending);
  // kCancelled when nobody may wait.
  Status MayWait() const;
  // Of the file system; see NodeState::PayloadRoom.
  Status MakeRoom(const Pending& pending, bool is_inline, bool may_block);
  // Space for it, and permission. May block to make room only on the thread for that.
  Status Prepare(Pending* pending, bool may_block);
  // Now, or when there is room.
  void StartSoon(const std::shared_ptr<Pending>& pending);
  void OnWritten(const std::shared_ptr<Pending>& pending, int error);
  void WriteElsewhere(const std::shared_ptr<Pending>& pending, int error);
  void Finish(const std::shared_ptr<Pending>& pending, StatusOr<Generation> result);
  void EndOne();
  // Another try of a read; EndOne follows once it is submitted. False: the storage stops.
  bool BeginAgain();
  // Why nothing can be read or changed of a job that was deleted.
  Status Exists() const;
  // As NodeState::RetryWhileFull, until somebody deletes the job.
  Status RetryWhileFull(const NodeState::Attempt& attempt);
  // A device that fails is asked once more, not when this is the last time.
  void ReadTry(const ShardEntry& entry, std::byte* data, bool last, ReadCallback done);
  // `error` as of IoDone; compares the checksum.
  Status CheckRead(const ShardEntry& entry, const std::byte* data, int error);
  void Free(uint64_t place, uint64_t bytes);
  Status SyncPayload(SyncLevel level);
  // Fails the node when the catalogue fails.
  Status WriteCatalogue(Catalogue::Batch* batch, bool sync);
  // Out of the index and of its space; the catalogue has been told.
  void Remove(const JobIndex::Garbage& garbage);

  const Parts parts_;
  const uint32_t number_;
  const uint64_t reserve_bytes_;

  std::atomic<bool> refuses_waiting_{false};
  std::atomic<bool> being_deleted_{false};  // what waits for space ends
  std::atomic<bool> syncs_{false};          // the level of the last commit

  Mutex order_mutex_;
  mutable Mutex mutex_;
  CondVar idle_;
  JobRecord record_ LUWU_GUARDED_BY(mutex_);
  JobIndex index_ LUWU_GUARDED_BY(mutex_);
  bool settled_ LUWU_GUARDED_BY(mutex_) = false;
  bool destroyed_ LUWU_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::weak_ptr<const void>> holds_ LUWU_GUARDED_BY(mutex_);  // by checkpoint
  std::string deleting_ LUWU_GUARDED_BY(mutex_);  // the checkpoint whose end is being written
  uint64_t under_way_ LUWU_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, uint64_t> loose_ LUWU_GUARDED_BY(mutex_);  // place -> bytes
};

}  // namespace luwu::persist
