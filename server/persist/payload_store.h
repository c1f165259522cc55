// Where the payload of one job's generations lies: three kinds behind one interface. ExtentStore (a
// preallocated file), and SlotStore over a RocksDB, which is both the engine `rocksdb_values` and
// the place of small values in the catalogue. A store knows places, not what they mean.
//
// Thread-safe. Write and Read do not block; `done` runs on an I/O thread and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "server/persist/disk_queue.h"
#include "server/persist/generation.h"

namespace luwu::persist {

class PayloadStore {
 public:
  virtual ~PayloadStore() = default;

  // Recovery: the place is in use. kCorrupt when two generations claim it. Then Recovered, once.
  virtual Status MarkUsed(uint64_t place, uint64_t bytes) = 0;
  virtual void Recovered() = 0;

  // What is written takes nothing of the file system that the store does not have yet.
  virtual bool HasRoom(uint64_t bytes) const = 0;
  // False when Grow has to make room first.
  virtual bool Take(uint64_t bytes, uint64_t* place) = 0;
  // Blocks. kResourceExhausted while the file system is full, kCorrupt when it fails.
  virtual Status Grow(uint64_t bytes) = 0;
  virtual void Give(uint64_t place, uint64_t bytes) = 0;
  // A place at which the device has failed is not taken again by this process. False: places of
  // this store mean nothing to the device, so that another one does not help.
  virtual bool Abandon(uint64_t place, uint64_t bytes) = 0;

  // `data` has room up to the next multiple of kIoAlignment; error ENOSPC can be tried again.
  virtual void Write(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) = 0;
  virtual void Read(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) = 0;
  // Of what lies there now, read at most `pace` at a time: it is told each part before it is read
  // and returns false to stop (kCancelled). Blocks.
  using Pace = std::function<bool(uint64_t bytes)>;
  virtual StatusOr<uint32_t> Checksum(uint64_t place, uint64_t bytes, const Pace& pace) = 0;

  // What was written before survives a crash at the level. Blocks. kResourceExhausted: try again.
  // kCorrupt: what was written may be lost.
  virtual Status Sync(SyncLevel level) = 0;
  // Deletes everything; the store is of no use afterwards.
  virtual Status Destroy() = 0;

  virtual uint64_t allocated_bytes() const = 0;
  // "extents/3 at offset 4096", for messages.
  virtual std::string Describe(uint64_t place) const = 0;
};

}  // namespace luwu::persist
