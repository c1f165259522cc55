// Space that is kept back for a full disk, in the file RESERVE: enough to start, to note what ends,
// and to delete jobs and checkpoints. Files of RocksDB take from it what they need when the file
// system has no more (patient_files.h); payload waits until it is whole again (node_state.h).
//
// Thread-safe; Release and Restore block as long as the file system does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/persist/block_file.h"

namespace luwu::persist {

class Reserve {
 public:
  // At most `wanted`, and a quarter of the file system. Takes what there is; that may be less than
  // it should be. kCorrupt.
  static StatusOr<std::unique_ptr<Reserve>> Open(const std::string& folder,
                                                 std::shared_ptr<BlockFileSystem> files,
                                                 uint64_t wanted);

  uint64_t bytes() const { return bytes_; }
  bool whole() const { return bytes_ == target_; }

  // False: what cannot be made lacks an inode, which no space makes up for.
  bool files_left() const { return files_->FreeFiles(path_) > 0; }

  // Gives at least so much back to the file system, or what is left. False: nothing was left.
  bool Release(uint64_t bytes);
  // kResourceExhausted: not yet.
  Status Restore();

 private:
  Reserve(std::string path, std::shared_ptr<BlockFileSystem> files, uint64_t target)
      : path_(std::move(path)), files_(std::move(files)), target_(target) {}

  const std::string path_;
  const std::shared_ptr<BlockFileSystem> files_;
  const uint64_t target_;
  std::atomic<uint64_t> bytes_{0};
  Mutex mutex_;
  std::unique_ptr<BlockFile> file_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::persist
