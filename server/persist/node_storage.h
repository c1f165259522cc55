// The data directory of a daemon: who owns it, which jobs it holds, what it costs. One per process;
// made before the first job, outlives all of them.
//
//   <path>/IDENTITY     node name and format; another node's directory is refused
//   <path>/PROMISED     the newest change of the catalogue that somebody was told of
//   <path>/RESERVE      space for a full disk
//   <path>/catalogue/   RocksDB: jobs, points, generations, checkpoints
//   <path>/extents/<n>  payload of job number n (engine `extents`), or
//   <path>/values/      RocksDB (engine `rocksdb_values`)
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "server/persist/job_storage.h"

namespace luwu::persist {

enum class Engine : uint8_t {
  kAuto,           // extents where the file system takes O_DIRECT and io_uring works
  kExtents,        // payload in preallocated files; without O_DIRECT or io_uring through the cache
  kRocksdbValues,  // payload inside RocksDB
};

struct StorageOptions {
  std::string path;       // absolute; created with mode 0700
  std::string node_name;  // the directory belongs to this node for ever
  Engine engine = Engine::kAuto;
  uint64_t budget_bytes = 0;  // most that payloads may take; 0: what the file system has
  uint32_t warn_percent = 85, stop_checkpoints_percent = 90, stop_percent = 95;  // of the budget
  uint64_t scrub_bytes_per_s = 0;                                                // 0: never
  uint64_t reserve_bytes = 64 * kMiB;  // kept back for a full disk, or a quarter of a small one
  uint64_t memory_budget_bytes = 0;    // of the node, of which RocksDB takes a part; 0: enough
};

struct StorageSnapshot {
  std::string path;
  Engine engine = Engine::kAuto;  // the one in use
  bool direct = false;            // past the page cache
  uint64_t budget_bytes = 0;
  uint64_t used_bytes = 0;                     // by payloads, free extents of the files not counted
  uint64_t allocated_bytes = 0;                // of the file system
  uint64_t free_bytes = 0;                     // that the file system has left
  uint64_t read_bytes = 0, written_bytes = 0;  // since the start
  std::optional<std::string> full;             // since writes wait: what is missing and where
  uint64_t waiting_writes = 0;
  std::string failed;           // not empty: nothing is written any more, and why
  uint64_t scrubbed_bytes = 0;  // since the start
  uint64_t scrub_cycles = 0;
  uint64_t memory_bytes = 0;  // that RocksDB may take
  std::vector<std::string>
      damaged;  // what scrubber and readers found, in words, newest last, bounded
};

class NodeStorage {
 public:
  // Recovers the catalogue and finds the engine. kPermission for a directory that another node or
  // process owns, kCorrupt, kUnsupported for a newer format, kResourceExhausted.
  static StatusOr<std::unique_ptr<NodeStorage>> Open(const StorageOptions& options);
  // All JobStorage are gone, or only waited for by callers that Shutdown has answered.
  virtual ~NodeStorage() = default;

  virtual std::vector<JobRecord> Jobs() const = 0;
  // `reserve_bytes`: what the job will take on disk at most, checkpoints not counted; refused with
  // kResourceExhausted naming the bytes when budget or file system have less left. kAlreadyExists.
  virtual StatusOr<std::shared_ptr<JobStorage>> CreateJob(const JobRecord& record,
                                                          uint64_t reserve_bytes) = 0;
  // kNotFound.
  virtual StatusOr<std::shared_ptr<JobStorage>> OpenJob(const std::string& name) = 0;
  // With points and checkpoints. Its JobStorage must not be used any more, but for reads, which
  // fail.
  virtual Status DeleteJob(const std::string& name) = 0;

  // Ends what waits for space with kCancelled, and waits for the writes that are under way, whose
  // callbacks must not wait for the caller; nothing is written afterwards. Reads go on.
  virtual void Shutdown() = 0;

  virtual StorageSnapshot Snapshot() const = 0;
};

}  // namespace luwu::persist
