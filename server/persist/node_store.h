// NodeStorage put together: identity, catalogue, engine, jobs. node_storage.h says what it does;
// the seams are for tests, which put faulty devices under it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/env.h>

#include "common/base/sync.h"
#include "common/base/unique_fd.h"
#include "server/persist/block_file.h"
#include "server/persist/catalogue.h"
#include "server/persist/disk_queue.h"
#include "server/persist/identity.h"
#include "server/persist/job_store.h"
#include "server/persist/node_state.h"
#include "server/persist/node_storage.h"
#include "server/persist/probe.h"
#include "server/persist/promises.h"
#include "server/persist/scrubber.h"
#include "server/persist/storage_memory.h"
#include "server/persist/values_db.h"
#include "server/persist/work_threads.h"

namespace luwu::persist {

struct StorageSeams {
  std::shared_ptr<BlockFileSystem> files = SystemFiles();
  rocksdb::Env* env = nullptr;  // null: the operating system's; outlives the storage
  std::string boot_id = BootId();
};

class NodeStore final : public NodeStorage {
 public:
  static StatusOr<std::unique_ptr<NodeStorage>> Open(const StorageOptions& options,
                                                     const StorageSeams& seams);
  ~NodeStore() override;

  std::vector<JobRecord> Jobs() const override;
  StatusOr<std::shared_ptr<JobStorage>> CreateJob(const JobRecord& record,
                                                  uint64_t reserve_bytes) override;
  StatusOr<std::shared_ptr<JobStorage>> OpenJob(const std::string& name) override;
  Status DeleteJob(const std::string& name) override;
  void Shutdown() override;
  StorageSnapshot Snapshot() const override;

 private:
  NodeStore(const StorageOptions& options, const StorageSeams& seams, UniqueFd lock)
      : options_(options), seams_(seams), lock_(std::move(lock)) {}

  Status Start();
  StatusOr<Identity> Identify(bool* is_new);
  StatusOr<Probe> TryOut();
  // Empty, or that no file can be made, which the system calls a lack of space.
  std::string DescribeInodes() const;
  Status OpenCatalogue(const Identity& identity, bool is_new);
  Status LoadJobs(std::vector<Catalogue::Job> jobs, uint32_t next_job);
  // What is left of jobs that were being created or deleted when the daemon ended. Payload that
  // the catalogue never knew is not removed: kCorrupt, naming it.
  Status RemoveOrphanFiles();
  Status RemoveOrphanFile(const std::string& path);
  Status RemoveOrphanValues();
  // Of all jobs.
  uint64_t AllocatedBytes() const;
  // Payload of a job that exists, or is about to.
  StatusOr<std::unique_ptr<PayloadStore>> OpenPayload(uint32_t job);
  StatusOr<std::shared_ptr<JobStore>> MakeJob(Catalogue::Job job);
  void SetBudget() const;
  Status CheckReserve(const std::string& name, uint64_t bytes) const LUWU_REQUIRES(mutex_);
  std::vector<std::shared_ptr<JobStore>> AllJobs() const;
  StatusOr<std::shared_ptr<JobStore>> FindJob(const std::string& name) const;
  std::string ExtentPath(uint32_t job) const;

  const StorageOptions options_;
  const StorageSeams seams_;
  const UniqueFd lock_;  // first in, last out
  Engine engine_ = Engine::kExtents;
  bool direct_ = false;
  StorageMemory memory_;
  mutable std::atomic<uint64_t> budget_bytes_{0};
  mutable std::atomic<uint64_t> stop_checkpoints_bytes_{0};

  mutable NodeState state_;
  std::unique_ptr<rocksdb::Env> env_;  // RocksDB's files wait for space
  std::unique_ptr<Promises> promises_;
  std::unique_ptr<Catalogue> catalogue_;
  ValuesDb values_;                   // engine rocksdb_values only
  std::unique_ptr<DiskQueue> queue_;  // engine extents only
  std::unique_ptr<WorkThreads> threads_;

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<JobStore>> jobs_ LUWU_GUARDED_BY(mutex_);
  uint32_t next_job_ LUWU_GUARDED_BY(mutex_) = 1;
  std::unique_ptr<Scrubber> scrubber_;
};

}  // namespace luwu::persist
