// The RocksDB for metadata: what jobs there are and where their generations lie. Owned by the
// node's storage; its job storages write batches into it. Read as a whole once, when it is opened.
//
// Every batch is a *change* with a number, which is promised (promises.h) before its writer is
// answered. What a loss of power leaves of RocksDB's log is taken up to its first damage; when the
// promised change is not among that, it is an error, found before anything is written.
//
// Errors: kResourceExhausted when the file system is full (the batch can be tried again: none or
// all of it is in the catalogue), kCorrupt for everything else, after which RocksDB takes no writes
// any more. Thread-safe; writes block.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/write_batch.h>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/persist/job_index.h"
#include "server/persist/promises.h"
#include "server/persist/record.h"

namespace luwu::persist {

class Catalogue {
 public:
  struct Job {
    StoredJob job;
    JobIndex index;
  };

  // All or nothing.
  class Batch {
   public:
    void PutCounter(uint32_t next_job);
    void Put(const StoredJob& job);
    void Put(uint32_t job, const Branch& branch);
    void Put(uint32_t job, const StoredGeneration& stored);
    void Put(uint32_t job, const StoredPoint& stored);
    void Put(uint32_t job, const StoredCheckpoint& stored);
    void Delete(uint32_t job, const StoredPoint& stored);
    void DeleteCheckpoint(uint32_t job, const std::string& name);
    void Delete(uint32_t job, const JobIndex::Garbage& garbage);
    // Everything of the job, inline values included.
    void DeleteJob(uint32_t job);

   private:
    friend class Catalogue;
    rocksdb::WriteBatch batch_;
    std::string what_ = "of jobs or what they no longer need";
  };

  struct Options {
    std::string path;
    rocksdb::Env* env = nullptr;   // null for the operating system's
    Promises* promises = nullptr;  // outlives the catalogue
    bool create = false;           // one that is missing is made, not an error
    uint64_t write_buffer_bytes = 16 * kMiB;
  };
  static StatusOr<std::unique_ptr<Catalogue>> Open(const Options& options);
  // Closed cleanly, its logs are empty, and all of it is promised to survive the machine.
  ~Catalogue();
  // It is closed as after a crash: RocksDB does not survive a flush after a write that failed.
  void CloseAsItIs() { closes_cleanly_ = false; }

  // kCorrupt when a record is damaged or the records do not fit together. What is left of jobs that
  // were deleted is dropped.
  Status Load(std::vector<Job>* jobs, uint32_t* next_job);
  Status Write(Batch* batch, bool sync);

  rocksdb::DB* db() { return db_.get(); }
  const std::string& path() const { return path_; }

 private:
  Catalogue(const Options& options, std::unique_ptr<rocksdb::DB> db)
      : path_(options.path), promises_(options.promises), db_(std::move(db)) {}
  void CloseCleanly();
  Status Drop(const std::vector<uint32_t>& deleted_jobs);

  const std::string path_;
  Promises* const promises_;
  const std::unique_ptr<rocksdb::DB> db_;
  std::atomic<bool> closes_cleanly_{true};
  Mutex write_mutex_;  // changes are in the log in the order of their numbers
  uint64_t change_ LUWU_GUARDED_BY(write_mutex_) = 0;
};

}  // namespace luwu::persist
