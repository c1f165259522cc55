// The payload of one job in one preallocated file, read and written past the page cache where the
// file system takes that. Owned by the job's storage; threads and failures as PayloadStore says.
#pragma once

#include <memory>
#include <string>

#include "common/base/memory.h"
#include "common/base/sync.h"
#include "server/persist/block_file.h"
#include "server/persist/extent_allocator.h"
#include "server/persist/payload_store.h"

namespace luwu::persist {

class ExtentStore final : public PayloadStore {
 public:
  // `queue` outlives the store. Opens or creates `path`; kResourceExhausted, kCorrupt.
  static StatusOr<std::unique_ptr<ExtentStore>> Open(const std::string& path,
                                                     std::shared_ptr<BlockFileSystem> files,
                                                     DiskQueue* queue);

  Status MarkUsed(uint64_t place, uint64_t bytes) override;
  void Recovered() override {}
  bool HasRoom(uint64_t bytes) const override;
  bool Take(uint64_t bytes, uint64_t* place) override;
  Status Grow(uint64_t bytes) override;
  void Give(uint64_t place, uint64_t bytes) override;
  // Stays taken.
  bool Abandon(uint64_t, uint64_t) override { return true; }
  void Write(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) override;
  void Read(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) override;
  StatusOr<uint32_t> Checksum(uint64_t place, uint64_t bytes, const Pace& pace) override;
  Status Sync(SyncLevel level) override;
  Status Destroy() override;
  uint64_t allocated_bytes() const override;
  std::string Describe(uint64_t place) const override;

 private:
  ExtentStore(std::string path, std::shared_ptr<BlockFileSystem> files, DiskQueue* queue)
      : path_(std::move(path)), files_(std::move(files)), queue_(queue) {}

  const std::string path_;
  const std::shared_ptr<BlockFileSystem> files_;
  DiskQueue* const queue_;
  std::unique_ptr<BlockFile> file_;

  Mutex grow_mutex_;  // one growth at a time; before mutex_
  mutable Mutex mutex_;
  ExtentAllocator allocator_ LUWU_GUARDED_BY(mutex_);
  Mutex scrub_mutex_;
  Mapping scrub_buffer_ LUWU_GUARDED_BY(scrub_mutex_);
};

}  // namespace luwu::persist
