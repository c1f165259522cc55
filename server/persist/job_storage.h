// The stored state of one job on this node: generations of shards, and the points in time that can
// be gone back to. Sits on two things: the payload store (extent files or RocksDB values) for
// bytes, and the node's catalogue (RocksDB) for what is where.
//
// Life of a generation: Write puts it into space that nothing refers to; from then on the caller
// owns it, until it is given to Discard or, with Commit, to a point. A committed generation goes
// when no point and no checkpoint needs it any more (Confirm, RollBack, DeleteCheckpoint). A crash
// loses what is in no point, and its space is free again after it.
//
// A full disk is not an error here: writes and commits wait, and are tried again every half second,
// until there is space (NodeStorage::Snapshot says so) or the storage is shut down (kCancelled).
// A device that fails in a write is given two other places for it, one that fails in a read is
// asked once more. When that does not help, the node writes nothing any more, or the reader is
// told.
//
// After a failed sync nothing is tried again: what was written since the last good one may be gone,
// so every later write and commit fails with kCorrupt until the node has been restarted.
//
// Once the job is deleted (NodeStorage::DeleteJob) everything fails with kNotFound; what waits for
// space ends.
//
// Threads: any. Write and Read do not block; their callbacks run on an I/O thread of the storage,
// must not block it, and may call Write and Read. Commit, Confirm, RollBack and the rest block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "server/persist/generation.h"

namespace luwu::persist {

// A checkpoint that is being read: nobody can delete it as long as `hold` is kept.
struct HeldCheckpoint {
  Checkpoint checkpoint;
  std::vector<ShardEntry> entries;  // by shard
  std::shared_ptr<const void> hold;
};

class JobStorage {
 public:
  using WriteCallback = std::function<void(StatusOr<Generation>)>;
  using ReadCallback = std::function<void(Status)>;

  virtual ~JobStorage() = default;

  // `data` begins at a multiple of kIoAlignment and has `bytes` of payload and room for padding to
  // the next multiple, which is overwritten; it stays untouched until `done`. The checksum is taken
  // on the calling thread. The result has step and applied 0: the caller fills them in. Errors:
  // kCorrupt (see above, or the device failed), kCancelled.
  virtual void Write(uint32_t shard, std::byte* data, uint64_t bytes, WriteCallback done) = 0;
  // Into `data`, aligned and padded as above. kCorrupt, naming job and shard, when the device fails
  // or the checksum is not the one that was written.
  virtual void Read(const ShardEntry& entry, std::byte* data, ReadCallback done) = 0;
  // Memory that transfers use again and again may be registered with the kernel; a hint. Who adopts
  // memory forgets it before unmapping it, when no transfer uses it any more: otherwise transfers
  // of whatever is mapped there later would go to the old pages.
  virtual void AdoptBuffers(ByteSpan memory) = 0;
  virtual void ForgetBuffers(ByteSpan memory) = 0;
  // Of a generation that is in no point.
  virtual void Discard(const Generation& generation) = 0;

  // Makes a point of `changed` and what former points have of the other shards, all or nothing, at
  // the level. `point.step` is above that of all points.
  virtual Status Commit(const Point& point, const std::vector<ShardEntry>& changed,
                        SyncLevel level) = 0;
  // All nodes have the point: older ones are not needed any more.
  virtual void Confirm(uint64_t step) = 0;

  // Ascending. The last one or two, checkpoints not counted.
  virtual std::vector<Point> Points() const = 0;
  virtual std::vector<Checkpoint> Checkpoints() const = 0;
  // What a point or checkpoint has, by shard. kNotFound.
  virtual StatusOr<std::vector<ShardEntry>> EntriesAt(const Point& point) const = 0;
  // Keeps the point under a name, synced. kAlreadyExists, kNotFound.
  virtual Status CreateCheckpoint(const Checkpoint& checkpoint) = 0;
  // kNotFound; kState while somebody holds it, or the job goes back to it.
  virtual Status DeleteCheckpoint(const std::string& name) = 0;
  // For reading it over a longer time, whatever is trained, rolled back or confirmed meanwhile.
  // Does not wait. kNotFound.
  virtual StatusOr<HeldCheckpoint> HoldCheckpoint(const std::string& name) = 0;

  // Goes back to a point or checkpoint, synced: it is the only point afterwards, and what no
  // checkpoint needs is free, generations in nobody's point included (the caller holds none). The
  // job has `epoch` from then on.
  virtual Status RollBack(const Point& point, uint64_t epoch) = 0;
  // Keeps in the record, synced, that the job is on its way to a checkpoint on all nodes; RollBack
  // takes it out, as does an empty name.
  virtual Status NoteRestore(const std::string& checkpoint) = 0;

  // While set, payload that would wait for space is given up with kCancelled: the job that wrote it
  // has ended.
  virtual void RefuseWaiting(bool refuse) = 0;

  virtual JobRecord record() const = 0;
  // What the job's generations take on disk, those of checkpoints and padding counted.
  virtual uint64_t used_bytes() const = 0;
};

}  // namespace luwu::persist
