#include "server/persist/catalogue.h"

#include <map>
#include <utility>

#include "common/base/crc32c.h"
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

std::string CleanMarkText(uint64_t sequence) {
  const std::string text = fmt::format("luwu catalogue closed at {}\n", sequence);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text.data(), text.size())));
  return fmt::format("{}crc32c {:08x}\n", text, crc);
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

  Status Finish(std::vector<Catalogue::Job>* jobs, uint32_t* next_job) {
    for (auto& [number, loaded] : jobs_) {
      if (loaded.job.number != number || number >= next_job_) {
        return Error(ErrorCode::kCorrupt, "the catalogue has records of job {} but not the job",
                     number);
      }
      RETURN_IF_ERROR(loaded.index.Check(loaded.job.record.name));
      jobs->push_back(std::move(loaded));
    }
    *next_job = next_job_;
    return OkStatus();
  }

 private:
  std::map<uint32_t, Catalogue::Job> jobs_;
  uint32_t next_job_ = 1;
};

}  // namespace

void Catalogue::Batch::PutCounter(uint32_t next_job) {
  batch_.Put(CounterKey(), EncodeCounter(next_job));
}
void Catalogue::Batch::Put(const StoredJob& job) { batch_.Put(JobKey(job.number), EncodeJob(job)); }
void Catalogue::Batch::Put(uint32_t job, const Branch& branch) {
  batch_.Put(BranchKey(job, branch.number), EncodeBranch(job, branch));
}
void Catalogue::Batch::Put(uint32_t job, const StoredGeneration& stored) {
  batch_.Put(GenerationKey(job, stored), EncodeGeneration(job, stored));
}
void Catalogue::Batch::Put(uint32_t job, const StoredPoint& stored) {
  batch_.Put(PointKey(job, stored), EncodePoint(job, stored));
}
void Catalogue::Batch::Put(uint32_t job, const StoredCheckpoint& stored) {
  batch_.Put(CheckpointKey(job, stored.checkpoint.name), EncodeCheckpoint(job, stored));
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

StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(const std::string& path, rocksdb::Env* env,
                                                     bool create) {
  rocksdb::Options options = CatalogueOptions();
  options.create_if_missing = create;
  if (env != nullptr) options.env = env;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, path, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) {
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
  std::unique_ptr<Catalogue> catalogue(new Catalogue(path, options.env, std::move(db)));
  RETURN_IF_ERROR(catalogue->TakeCleanMark());
  return catalogue;
}

Catalogue::~Catalogue() {
  if (leaves_mark_) LeaveCleanMark();
}

// RocksDB takes a log or manifest that ends too early for one that was being written. After a clean
// close that is not so: the sequence number that was reached then must be reached again.
Status Catalogue::TakeCleanMark() {
  const std::string mark = path_ + "/CLEAN";
  if (env_->FileExists(mark).IsNotFound()) return OkStatus();
  std::string text;
  const std::string what = fmt::format("reading {}", mark);
  RETURN_IF_ERROR(FromRocksdb(rocksdb::ReadFileToString(env_, mark, &text), what));
  if (text != CleanMarkText(db_->GetLatestSequenceNumber())) {
    return Error(ErrorCode::kCorrupt,
                 "the catalogue in {} is not as it was closed: it has lost records, or {} is "
                 "damaged; restore the directory, or move it away and restore a checkpoint",
                 path_, mark);
  }
  return FromRocksdb(env_->DeleteFile(mark), fmt::format("removing {}", mark));
}

void Catalogue::LeaveCleanMark() {
  // Logs emptied: the next start has nothing to replay.
  rocksdb::Status status = db_->Flush(rocksdb::FlushOptions());
  if (status.ok()) {
    const std::string text = CleanMarkText(db_->GetLatestSequenceNumber());
    status = rocksdb::WriteStringToFile(env_, text, path_ + "/CLEAN", /*should_sync=*/true);
  }
  if (!status.ok()) LogWarning("catalogue_not_closed_cleanly", "error={}", status.ToString());
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
  return Annotate(loader.Finish(jobs, next_job), path_);
}

Status Catalogue::Write(Batch* batch, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  const rocksdb::Status status =
      RetryWithRoom(db_.get(), [&] { return db_->Write(options, &batch->batch_); });
  if (!status.ok() && !status.IsNoSpace()) CloseAsItIs();
  return FromRocksdb(status, fmt::format("writing the catalogue in {}", path_));
}

}  // namespace luwu::persist
