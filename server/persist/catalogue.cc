#include "server/persist/catalogue.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/log.h"
#include "server/persist/rocksdb_files.h"

namespace luwu::persist {
namespace {

// A prefix is followed by at least one byte in every key that has more than it.
void DeletePrefix(rocksdb::WriteBatch* batch, const std::string& prefix) {
  std::string end = prefix;
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  batch->DeleteRange(prefix, end);
}

std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// The number of the newest change; 0 in a catalogue that has none yet.
StatusOr<uint64_t> NewestChange(rocksdb::DB* db) {
  std::string value;
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  const rocksdb::Status status = db->Get(options, ChangeKey(), &value);
  if (status.IsNotFound()) return uint64_t{0};
  RETURN_IF_ERROR(FromRocksdb(status, fmt::format("reading {}", db->GetName())));
  return DecodeChange(ChangeKey(), value);
}

Status OpenError(const rocksdb::Status& status, const std::string& path) {
  if (status.IsIOError() && status.ToString().find("lock") != std::string::npos) {
    return Error(ErrorCode::kPermission,
                 "{} is in use by another process ({}): stop it, or give this daemon another "
                 "storage path",
                 path, status.ToString());
  }
  return Annotate(FromRocksdb(status, fmt::format("opening the catalogue in {}", path)),
                  "the data directory cannot be used; if the disk is sound, move the directory "
                  "away and restore a checkpoint or an export");
}

// Opened without writing, so that a catalogue that lacks something is left as it was found.
Status CheckPromise(const rocksdb::Options& options, const std::string& path,
                    const Promises& promises) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, path, &opened);
  const std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) return OpenError(status, path);
  ASSIGN_OR_RETURN(const uint64_t change, NewestChange(db.get()));
  return promises.Check(change, path);
}

// Collects what Load meets until all of it is there: keys of one job are not next to each other.
class Loader {
 public:
  Status Add(std::string_view key, std::string_view value) {
    uint32_t job = 0;
    switch (static_cast<RecordKind>(key.empty() ? '\0' : key[0])) {
      case RecordKind::kCounter: {
        ASSIGN_OR_RETURN(next_job_, DecodeCounter(key, value));
        return OkStatus();
      }
      case RecordKind::kChange:
        return OkStatus();  // looked at when it was opened
      case RecordKind::kJob: {
        ASSIGN_OR_RETURN(const StoredJob stored, DecodeJob(key, value));
        Catalogue::Job& loaded = jobs_[stored.number];
        loaded.job = stored;
        loaded.index.set_branch(stored.branch);
        return OkStatus();
      }
      case RecordKind::kBranch: {
        ASSIGN_OR_RETURN(const Branch stored, DecodeBranch(key, value, &job));
        jobs_[job].index.Add(stored);
        return OkStatus();
      }
      case RecordKind::kGeneration: {
        ASSIGN_OR_RETURN(const StoredGeneration stored, DecodeGeneration(key, value, &job));
        jobs_[job].index.Add(stored);
        return OkStatus();
      }
      case RecordKind::kPoint: {
        ASSIGN_OR_RETURN(const StoredPoint stored, DecodePoint(key, value, &job));
        jobs_[job].index.Add(stored);
        return OkStatus();
      }
      case RecordKind::kCheckpoint: {
        ASSIGN_OR_RETURN(const StoredCheckpoint stored, DecodeCheckpoint(key, value, &job));
        jobs_[job].index.Add(stored);
        return OkStatus();
      }
      case RecordKind::kInlineValue:
        return OkStatus();  // checked when it is read
    }
    return Error(ErrorCode::kCorrupt, "the catalogue has a record of an unknown kind");
  }

  struct Loaded {
    std::vector<Catalogue::Job> jobs;
    std::vector<uint32_t> deleted;  // of which there are records
    uint32_t next_job = 1;
  };
  StatusOr<Loaded> Finish() {
    Loaded all{.jobs = {}, .deleted = {}, .next_job = next_job_};
    for (auto& [number, loaded] : jobs_) {
      // A job is made with its first branch, and never without one until it is deleted. Former
      // releases could write a checkpoint, or the job's own record, after that.
      if (!loaded.index.has_branches() && number < next_job_) {
        all.deleted.push_back(number);
        continue;
      }
      if (loaded.job.number != number || number >= next_job_) {
        return Error(ErrorCode::kCorrupt, "the catalogue has records of job {} but not the job",
                     number);
      }
      RETURN_IF_ERROR(loaded.index.Check(loaded.job.record.name));
      all.jobs.push_back(std::move(loaded));
    }
    return all;
  }

 private:
  std::map<uint32_t, Catalogue::Job> jobs_;
  uint32_t next_job_ = 1;
};

}  // namespace

void Catalogue::Batch::PutCounter(uint32_t next_job) {
  batch_.Put(CounterKey(), EncodeCounter(next_job));
}
void Catalogue::Batch::Put(const StoredJob& job) {
  batch_.Put(JobKey(job.number), EncodeJob(job));
  what_ = fmt::format("job '{}' (number {})", job.record.name, job.number);
}
void Catalogue::Batch::Put(uint32_t job, const Branch& branch) {
  batch_.Put(BranchKey(job, branch.number), EncodeBranch(job, branch));
}
void Catalogue::Batch::Put(uint32_t job, const StoredGeneration& stored) {
  batch_.Put(GenerationKey(job, stored), EncodeGeneration(job, stored));
}
void Catalogue::Batch::Put(uint32_t job, const StoredPoint& stored) {
  batch_.Put(PointKey(job, stored), EncodePoint(job, stored));
  what_ = fmt::format("point {} of job number {}", stored.point.step, job);
}
void Catalogue::Batch::Put(uint32_t job, const StoredCheckpoint& stored) {
  batch_.Put(CheckpointKey(job, stored.checkpoint.name), EncodeCheckpoint(job, stored));
  what_ = fmt::format("checkpoint '{}' of job number {}", stored.checkpoint.name, job);
}
void Catalogue::Batch::Delete(uint32_t job, const StoredPoint& stored) {
  batch_.Delete(PointKey(job, stored));
}
void Catalogue::Batch::DeleteCheckpoint(uint32_t job, const std::string& name) {
  batch_.Delete(CheckpointKey(job, name));
}
void Catalogue::Batch::Delete(uint32_t job, const JobIndex::Garbage& garbage) {
  for (const StoredGeneration& stored : garbage.generations)
    batch_.Delete(GenerationKey(job, stored));
  for (const uint32_t branch : garbage.branches) batch_.Delete(BranchKey(job, branch));
}
void Catalogue::Batch::DeleteJob(uint32_t job) {
  batch_.Delete(JobKey(job));
  for (const RecordKind kind : {RecordKind::kBranch, RecordKind::kGeneration, RecordKind::kPoint,
                                RecordKind::kCheckpoint, RecordKind::kInlineValue}) {
    DeletePrefix(&batch_, JobPrefix(kind, job));
  }
}

StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(const Options& options) {
  rocksdb::Options rocks = CatalogueOptions(options.write_buffer_bytes);
  rocks.create_if_missing = options.create;
  if (options.env != nullptr) rocks.env = options.env;
  if (!options.create) RETURN_IF_ERROR(CheckPromise(rocks, options.path, *options.promises));
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(rocks, options.path, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) return OpenError(status, options.path);
  ASSIGN_OR_RETURN(const uint64_t change, NewestChange(db.get()));
  RETURN_IF_ERROR(options.promises->Check(change, options.path));
  std::unique_ptr<Catalogue> catalogue(new Catalogue(options, std::move(db)));
  const MutexLock lock(catalogue->write_mutex_);
  // Numbers that a lost change had are not used again.
  catalogue->change_ = std::max(change, options.promises->required());
  // What a log had is in tables now, and synced.
  const Status promised =
      options.promises->Record(catalogue->change_, /*synced=*/true, "opening it");
  if (!promised.ok() && CodeOf(promised) != ErrorCode::kResourceExhausted) return promised;
  return catalogue;
}

Catalogue::~Catalogue() {
  if (closes_cleanly_) CloseCleanly();
}

void Catalogue::CloseCleanly() {
  // Logs emptied: the next start has nothing to replay.
  Status status = FromRocksdb(db_->Flush(rocksdb::FlushOptions()), "flushing");
  const MutexLock lock(write_mutex_);
  if (status.ok()) status = promises_->Record(change_, /*synced=*/true, "closing it");
  if (!status.ok()) LogWarning("catalogue_not_closed_cleanly", "error={}", MessageOf(status));
}

Status Catalogue::Load(std::vector<Job>* jobs, uint32_t* next_job) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> iterator(db_->NewIterator(options));
  Loader loader;
  for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
    const Status added = loader.Add(View(iterator->key()), View(iterator->value()));
    if (!added.ok()) return Annotate(added, path_);
  }
  RETURN_IF_ERROR(FromRocksdb(iterator->status(), fmt::format("reading {}", path_)));
  StatusOr<Loader::Loaded> loaded = loader.Finish();
  if (!loaded.ok()) return Annotate(loaded.status(), path_);
  *jobs = std::move(loaded->jobs);
  *next_job = loaded->next_job;
  return Drop(loaded->deleted);
}

Status Catalogue::Drop(const std::vector<uint32_t>& deleted_jobs) {
  if (deleted_jobs.empty()) return OkStatus();
  Batch batch;
  for (const uint32_t number : deleted_jobs) {
    LogWarning("catalogue_records_dropped", "job_number={} why=\"the job was deleted\"", number);
    batch.DeleteJob(number);
  }
  // On a full disk they stay until the next start.
  const Status written = Write(&batch, /*sync=*/true);
  return CodeOf(written) == ErrorCode::kResourceExhausted ? OkStatus() : written;
}

Status Catalogue::Write(Batch* batch, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  const MutexLock lock(write_mutex_);
  // Also of an attempt that failed: who knows what is in the log.
  ++change_;
  batch->batch_.Put(ChangeKey(), EncodeChange(change_));
  const rocksdb::Status written =
      RetryWithRoom(db_.get(), [&] { return db_->Write(options, &batch->batch_); });
  Status status = FromRocksdb(written, fmt::format("writing the catalogue in {}", path_));
  if (status.ok()) status = promises_->Record(change_, sync, batch->what_);
  if (!status.ok() && CodeOf(status) != ErrorCode::kResourceExhausted) CloseAsItIs();
  return status;
}

}  // namespace luwu::persist
