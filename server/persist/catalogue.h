// The RocksDB for metadata: what jobs there are and where their generations lie. Owned by the
// node's storage; its job storages write batches into it. Read as a whole once, when it is opened.
//
// Errors: kResourceExhausted when the file system is full (the batch can be tried again: none or
// all of it is in the catalogue), kCorrupt for everything else, after which RocksDB takes no writes
// any more. Thread-safe; writes block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/write_batch.h>

#include "common/base/status.h"
#include "server/persist/job_index.h"
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
  };

  // `env`: null for the operating system's. `create`: one that is missing is made, not an error.
  static StatusOr<std::unique_ptr<Catalogue>> Open(const std::string& path, rocksdb::Env* env,
                                                   bool create);
  // Closed cleanly, it remembers how much it held, so that the loss of its end is found.
  ~Catalogue();
  // It is closed as after a crash: RocksDB does not survive a flush after a write that failed.
  void CloseAsItIs() { leaves_mark_ = false; }

  // kCorrupt when a record is damaged or the records do not fit together.
  Status Load(std::vector<Job>* jobs, uint32_t* next_job);
  Status Write(Batch* batch, bool sync);

  rocksdb::DB* db() { return db_.get(); }
  const std::string& path() const { return path_; }

 private:
  bool leaves_mark_ = true;
  Catalogue(std::string path, rocksdb::Env* env, std::unique_ptr<rocksdb::DB> db)
      : path_(std::move(path)), env_(env), db_(std::move(db)) {}
  Status TakeCleanMark();
  void LeaveCleanMark();

  const std::string path_;
  rocksdb::Env* const env_;
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace luwu::persist
