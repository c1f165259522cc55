#include "server/persist/node_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "server/persist/extent_store.h"
#include "server/persist/identity.h"
#include "server/persist/patient_files.h"
#include "server/persist/probe.h"
#include "server/persist/rocksdb_files.h"
#include "server/persist/slot_store.h"

namespace luwu::persist {
namespace {

constexpr uint32_t kValueThreads = 4;

uint64_t Percent(uint64_t bytes, uint32_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}

Engine EngineOr(Engine wanted, Engine otherwise) {
  return wanted == Engine::kAuto ? otherwise : wanted;
}

Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return OkStatus();
  return Error(errno == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kPermission,
               "creating {}: {}", path, std::strerror(errno));
}

}  // namespace

StatusOr<std::unique_ptr<NodeStorage>> NodeStorage::Open(const StorageOptions& options) {
  return NodeStore::Open(options, StorageSeams());
}

StatusOr<std::unique_ptr<NodeStorage>> NodeStore::Open(const StorageOptions& options,
                                                       const StorageSeams& seams) {
  if (options.path.empty() || options.path[0] != '/') {
    return Error(ErrorCode::kInvalidArgument, "storage path '{}': give an absolute path",
                 options.path);
  }
  if (options.node_name.empty() || options.node_name.find('\n') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument, "storage: a node needs a name of one line");
  LUWU_FAILPOINT("persist.open");
  ASSIGN_OR_RETURN(UniqueFd lock, LockDirectory(options.path));
  std::unique_ptr<NodeStore> store(new NodeStore(options, seams, std::move(lock)));
  RETURN_IF_ERROR(store->Start());
  return store;
}

Status NodeStore::Start() {
  const std::string& path = options_.path;
  StatusOr<Identity> identity = ReadIdentity(path);
  const bool is_new = CodeOf(identity.status()) == ErrorCode::kNotFound;
  if (!identity.ok() && !is_new) return identity.status();
  if (!is_new && identity->node_name != options_.node_name) {
    return Error(ErrorCode::kPermission,
                 "{} belongs to node '{}', this is node '{}': give each node its own directory, or "
                 "set the node's name back",
                 path, identity->node_name, options_.node_name);
  }
  Engine wanted = options_.engine;
  if (wanted == Engine::kAuto && !is_new) wanted = identity->engine;
  if (is_new) {
    const Engine likely = EngineOr(wanted, Engine::kExtents);
    RETURN_IF_ERROR(BeginIdentity(path, {options_.node_name, likely}));
  }
  const std::string extents = path + "/extents";
  RETURN_IF_ERROR(MakeFolder(extents));
  ASSIGN_OR_RETURN(Probe probe, ProbeDirectory(extents, seams_.files.get()));
  wanted =
      EngineOr(wanted, probe.direct && probe.uring ? Engine::kExtents : Engine::kRocksdbValues);
  direct_ = probe.direct;
  queue_ = std::move(probe.queue);
  rocksdb::Env* const base = seams_.env != nullptr ? seams_.env : rocksdb::Env::Default();
  env_ = rocksdb::NewCompositeEnv(PatientFiles(base->GetFileSystem(), &state_));
  ASSIGN_OR_RETURN(catalogue_, Catalogue::Open(path + "/catalogue", env_.get(), is_new));
  std::vector<Catalogue::Job> jobs;
  uint32_t next_job = 1;
  RETURN_IF_ERROR(catalogue_->Load(&jobs, &next_job));
  if (!is_new && identity->engine != wanted && !jobs.empty()) {
    return Error(ErrorCode::kUnsupported,
                 "{} holds jobs of engine {}, the configuration says {}: set the engine back, or "
                 "export the jobs first",
                 path, EngineName(identity->engine), EngineName(wanted));
  }
  engine_ = wanted;
  threads_ = std::make_unique<WorkThreads>(kValueThreads);
  if (engine_ == Engine::kRocksdbValues) {
    queue_.reset();
    // Without jobs it may be missing: the engine has just been chosen.
    ASSIGN_OR_RETURN(values_, OpenValues({path + "/values", env_.get(), direct_, jobs.empty()}));
  }
  if (is_new || identity->engine != engine_) {
    RETURN_IF_ERROR(BeginIdentity(path, {options_.node_name, engine_}));
    RETURN_IF_ERROR(FinishIdentity(path));
  }
  RETURN_IF_ERROR(LoadJobs(std::move(jobs), next_job));
  RETURN_IF_ERROR(engine_ == Engine::kExtents ? RemoveOrphanFiles() : RemoveOrphanValues());
  SetBudget();
  if (options_.scrub_bytes_per_s > 0) {
    scrubber_ = std::make_unique<Scrubber>(
        &state_, [this] { return AllJobs(); }, options_.scrub_bytes_per_s);
  }
  LogInfo("storage_opened", "path={} engine={} direct={} io_uring={} jobs={} payload_bytes={}",
          path, EngineName(engine_), direct_, probe.uring, AllJobs().size(), state_.used_bytes());
  return OkStatus();
}

NodeStore::~NodeStore() {
  Shutdown();
  scrubber_.reset();
  queue_.reset();
  threads_.reset();
  const MutexLock lock(mutex_);
  jobs_.clear();
}

std::string NodeStore::ExtentPath(uint32_t job) const {
  return fmt::format("{}/extents/{}", options_.path, job);
}

StatusOr<std::unique_ptr<PayloadStore>> NodeStore::OpenPayload(uint32_t job) {
  if (engine_ == Engine::kRocksdbValues) {
    return std::make_unique<SlotStore>(values_.db.get(), threads_.get(), job,
                                       SlotStore::Durability::kByFlush);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ExtentStore> store,
                   ExtentStore::Open(ExtentPath(job), seams_.files, queue_.get()));
  return store;
}

StatusOr<std::shared_ptr<JobStore>> NodeStore::MakeJob(Catalogue::Job job) {
  JobStore::Parts parts;
  parts.catalogue = catalogue_.get();
  parts.state = &state_;
  parts.threads = threads_.get();
  ASSIGN_OR_RETURN(parts.extents, OpenPayload(job.job.number));
  parts.values = std::make_unique<SlotStore>(catalogue_->db(), threads_.get(), job.job.number,
                                             SlotStore::Durability::kByLog);
  parts.stop_checkpoints_bytes = &stop_checkpoints_bytes_;
  return std::make_shared<JobStore>(std::move(parts), std::move(job));
}

Status NodeStore::LoadJobs(std::vector<Catalogue::Job> jobs, uint32_t next_job) {
  const MutexLock lock(mutex_);
  next_job_ = next_job;
  for (Catalogue::Job& job : jobs) {
    const std::string name = job.job.record.name;
    ASSIGN_OR_RETURN(jobs_[name], MakeJob(std::move(job)));
    RETURN_IF_ERROR(jobs_[name]->Recover());
  }
  return OkStatus();
}

Status NodeStore::RemoveOrphanFiles() {
  std::set<std::string> known;
  for (const std::shared_ptr<JobStore>& job : AllJobs()) known.insert(ExtentPath(job->number()));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.path + "/extents", error)) {
    const std::string path = entry.path().string();
    if (known.contains(path)) continue;
    if (const int removed = seams_.files->Remove(path); removed < 0) {
      return Error(ErrorCode::kCorrupt, "removing {}, which belongs to no job: {}", path,
                   std::strerror(-removed));
    }
  }
  return OkStatus();
}

Status NodeStore::RemoveOrphanValues() {
  std::set<uint32_t> known;
  for (const std::shared_ptr<JobStore>& job : AllJobs()) known.insert(job->number());
  const std::unique_ptr<rocksdb::Iterator> iterator(values_.db->NewIterator({}));
  iterator->SeekToFirst();
  while (iterator->Valid()) {
    const rocksdb::Slice key = iterator->key();
    uint32_t job = 0;
    RETURN_IF_ERROR(JobOfValueKey({key.data(), key.size()}, &job));
    if (!known.contains(job)) {
      RETURN_IF_ERROR(
          SlotStore(values_.db.get(), threads_.get(), job, SlotStore::Durability::kByFlush)
              .Destroy());
    }
    iterator->Seek(JobPrefix(RecordKind::kInlineValue, job + 1));
  }
  // A first value that cannot be read is found by whoever needs it.
  return OkStatus();
}

uint64_t NodeStore::AllocatedBytes() const {
  if (engine_ == Engine::kRocksdbValues) return values_.AllocatedBytes();
  uint64_t allocated = 0;
  for (const std::shared_ptr<JobStore>& job : AllJobs()) allocated += job->allocated_bytes();
  return allocated;
}

void NodeStore::SetBudget() {
  budget_bytes_ = options_.budget_bytes;
  if (budget_bytes_ == 0) budget_bytes_ = seams_.files->FreeBytes(options_.path) + AllocatedBytes();
  state_.set_stop_bytes(Percent(budget_bytes_, options_.stop_percent));
  stop_checkpoints_bytes_ = Percent(budget_bytes_, options_.stop_checkpoints_percent);
}

std::vector<std::shared_ptr<JobStore>> NodeStore::AllJobs() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<JobStore>> all;
  for (const auto& [name, job] : jobs_) all.push_back(job);
  return all;
}

std::vector<JobRecord> NodeStore::Jobs() const {
  std::vector<JobRecord> records;
  for (const std::shared_ptr<JobStore>& job : AllJobs()) records.push_back(job->record());
  return records;
}

Status NodeStore::CheckReserve(const std::string& name, uint64_t bytes) const {
  uint64_t promised = 0;     // of the budget
  uint64_t to_be_taken = 0;  // of the file system, still
  for (const auto& [other, job] : jobs_) {
    promised += std::max(job->reserve_bytes(), job->used_bytes());
    const uint64_t allocated = job->allocated_bytes();
    to_be_taken += job->reserve_bytes() - std::min(job->reserve_bytes(), allocated);
  }
  const auto refuse = [&](const char* what, uint64_t left) {
    return Error(ErrorCode::kResourceExhausted,
                 "job '{}' takes up to {} of storage on this node; {} has {} left: delete jobs, or "
                 "raise the budget or the size of {}",
                 name, HumanBytes(bytes), what, HumanBytes(left), options_.path);
  };
  const uint64_t limit = Percent(budget_bytes_, options_.stop_percent);
  const uint64_t left = limit - std::min(limit, promised);
  if (bytes > left) return refuse("the budget", left);
  const uint64_t free = seams_.files->FreeBytes(options_.path);
  const uint64_t really = free - std::min(free, to_be_taken);
  if (bytes > really) return refuse("the file system", really);
  return OkStatus();
}

StatusOr<std::shared_ptr<JobStorage>> NodeStore::CreateJob(const JobRecord& record,
                                                           uint64_t reserve_bytes) {
  RETURN_IF_ERROR(state_.Usable());
  const MutexLock lock(mutex_);
  if (jobs_.contains(record.name)) {
    return Error(ErrorCode::kAlreadyExists, "the storage has a job '{}'", record.name);
  }
  RETURN_IF_ERROR(CheckReserve(record.name, reserve_bytes));
  const Branch first{1, 0, 0};
  Catalogue::Job job;
  job.job = {next_job_, record, reserve_bytes, first.number};
  job.index.Add(first);
  job.index.set_branch(first.number);
  Catalogue::Batch batch;
  batch.PutCounter(next_job_ + 1);
  batch.Put(job.job);
  batch.Put(next_job_, first);
  ASSIGN_OR_RETURN(std::shared_ptr<JobStore> made, MakeJob(std::move(job)));
  const Status written = catalogue_->Write(&batch, /*sync=*/true);
  if (!written.ok()) {
    if (CodeOf(written) != ErrorCode::kResourceExhausted) state_.Fail(MessageOf(written));
    return Annotate(written, fmt::format("job '{}' cannot be stored", record.name));
  }
  ++next_job_;
  jobs_[record.name] = made;
  return made;
}

StatusOr<std::shared_ptr<JobStorage>> NodeStore::OpenJob(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return Error(ErrorCode::kNotFound, "the storage has no job '{}'", name);
  return found->second;
}

Status NodeStore::DeleteJob(const std::string& name) {
  RETURN_IF_ERROR(state_.Usable());
  std::shared_ptr<JobStore> job;
  {
    const MutexLock lock(mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end())
      return Error(ErrorCode::kNotFound, "the storage has no job '{}'", name);
    job = found->second;
    Catalogue::Batch batch;
    batch.DeleteJob(job->number());
    const Status written = catalogue_->Write(&batch, /*sync=*/true);
    if (!written.ok()) {
      if (CodeOf(written) != ErrorCode::kResourceExhausted) state_.Fail(MessageOf(written));
      return Annotate(written, fmt::format("job '{}' cannot be deleted", name));
    }
    jobs_.erase(found);
  }
  return job->Destroy();
}

void NodeStore::AdoptBuffers(ByteSpan memory) {
  if (queue_ != nullptr) queue_->AdoptBuffers(memory);
}

void NodeStore::ForgetBuffers(ByteSpan memory) {
  if (queue_ != nullptr) queue_->ForgetBuffers(memory);
}

void NodeStore::Shutdown() {
  state_.Stop();
  if (state_.stopped_full() && catalogue_ != nullptr) catalogue_->CloseAsItIs();
  for (const std::shared_ptr<JobStore>& job : AllJobs()) job->Drain();
}

StorageSnapshot NodeStore::Snapshot() const {
  StorageSnapshot snapshot;
  snapshot.path = options_.path;
  snapshot.engine = engine_;
  snapshot.direct = direct_;
  snapshot.budget_bytes = budget_bytes_;
  snapshot.used_bytes = state_.used_bytes();
  snapshot.allocated_bytes = AllocatedBytes();
  snapshot.free_bytes = seams_.files->FreeBytes(options_.path);
  snapshot.read_bytes = state_.read_bytes;
  snapshot.written_bytes = state_.written_bytes;
  snapshot.full = state_.full();
  snapshot.waiting_writes = state_.waiting();
  snapshot.failed = state_.failed();
  snapshot.scrubbed_bytes = state_.scrubbed_bytes;
  snapshot.scrub_cycles = state_.scrub_cycles;
  snapshot.damaged = state_.damaged();
  return snapshot;
}

}  // namespace luwu::persist
