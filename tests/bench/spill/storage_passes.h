// Passes over all shards of a stored job, as the daemon makes them: a few staging buffers in huge
// pages, reads ahead, writes behind, a synced commit at the end. Used by benchmarks, on one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "server/persist/node_storage.h"

namespace luwu::bench {

struct StoragePassesOptions {
  persist::StorageOptions storage;
  uint32_t shards = 0;
  uint64_t shard_bytes = 0;
  uint32_t buffers = 6;
};

class StoragePasses {
 public:
  // Opens the storage, makes a job in it and writes two generations.
  static StatusOr<std::unique_ptr<StoragePasses>> Create(const StoragePassesOptions& options);
  ~StoragePasses();
  StoragePasses(const StoragePasses&) = delete;
  StoragePasses& operator=(const StoragePasses&) = delete;

  // Seconds of one pass; checksums are made and checked.
  StatusOr<double> Overwrite();
  StatusOr<double> Read();
  StatusOr<double> ReadAndWrite();
  double last_commit_s() const { return last_commit_s_; }  // of the newest pass that wrote
  persist::StorageSnapshot Snapshot() const { return node_->Snapshot(); }

 private:
  explicit StoragePasses(const StoragePassesOptions& options) : options_(options) {}
  Status Start();
  StatusOr<double> Pass(bool read, bool write);

  const StoragePassesOptions options_;
  std::unique_ptr<persist::NodeStorage> node_;
  std::shared_ptr<persist::JobStorage> job_;
  Mapping memory_;
  uint64_t step_ = 0;
  double last_commit_s_ = 0;
};

}  // namespace luwu::bench
