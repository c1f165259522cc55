#include "server/persist/node_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "server/persist/extent_store.h"
#include "server/persist/patient_files.h"
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
  bool is_new = false;
  ASSIGN_OR_RETURN(const Identity identity, Identify(&is_new));
  RETURN_IF_ERROR(MakeFolder(path + "/extents"));
  ASSIGN_OR_RETURN(std::unique_ptr<Reserve> reserve,
                   Reserve::Open(path, seams_.files, options_.reserve_bytes));
  state_.set_device(DeviceOf(path));
  state_.set_reserve(std::move(reserve));
  ASSIGN_OR_RETURN(Probe probe, TryOut());
  const Engine possible = probe.direct && probe.uring ? Engine::kExtents : Engine::kRocksdbValues;
  // What there is stays as it is, as long as nobody wants something else.
  engine_ = EngineOr(options_.engine, is_new ? possible : identity.engine);
  memory_ = PlanMemory(options_.memory_budget_bytes, engine_);
  direct_ = probe.direct;
  queue_ = std::move(probe.queue);
  RETURN_IF_ERROR(OpenCatalogue(identity, is_new));
  std::vector<Catalogue::Job> jobs;
  uint32_t next_job = 1;
  RETURN_IF_ERROR(catalogue_->Load(&jobs, &next_job));
  if (!is_new && identity.engine != engine_ && !jobs.empty()) {
    return Error(ErrorCode::kUnsupported,
                 "{} holds jobs of engine {}, the configuration says {}: set the engine back, or "
                 "export the jobs first",
                 path, EngineName(identity.engine), EngineName(engine_));
  }
  threads_ = std::make_unique<WorkThreads>(kValueThreads);
  if (engine_ == Engine::kRocksdbValues) {
    queue_.reset();
    // Without jobs it may be missing: the engine has just been chosen.
    ASSIGN_OR_RETURN(values_, OpenValues({.path = path + "/values",
                                          .env = env_.get(),
                                          .direct = direct_,
                                          .create = jobs.empty(),
                                          .write_buffer_bytes = memory_.values_buffer_bytes}));
  }
  const Identity wanted{options_.node_name, engine_};
  if (is_new || identity != wanted) {
    RETURN_IF_ERROR(BeginIdentity(path, wanted));
    RETURN_IF_ERROR(FinishIdentity(path));
  }
  RETURN_IF_ERROR(LoadJobs(std::move(jobs), next_job));
  RETURN_IF_ERROR(engine_ == Engine::kExtents ? RemoveOrphanFiles() : RemoveOrphanValues());
  SetBudget();
  state_.set_before_retries([this] { SetBudget(); });
  if (options_.scrub_bytes_per_s > 0) {
    scrubber_ = std::make_unique<Scrubber>(
        &state_, [this] { return AllJobs(); }, options_.scrub_bytes_per_s);
  }
  LogInfo("storage_opened",
          "path={} engine={} direct={} io_uring={} jobs={} payload_bytes={} budget={} memory={}",
          path, EngineName(engine_), direct_, probe.uring, AllJobs().size(), state_.used_bytes(),
          budget_bytes_.load(), memory_.bytes);
  return OkStatus();
}

StatusOr<Identity> NodeStore::Identify(bool* is_new) {
  const std::string& path = options_.path;
  StatusOr<Identity> identity = ReadIdentity(path);
  *is_new = CodeOf(identity.status()) == ErrorCode::kNotFound;
  if (*is_new) {
    const Identity first{options_.node_name, EngineOr(options_.engine, Engine::kExtents)};
    RETURN_IF_ERROR(BeginIdentity(path, first));
    return first;
  }
  if (!identity.ok()) return identity.status();
  if (identity->node_name != options_.node_name) {
    return Error(ErrorCode::kPermission,
                 "{} belongs to node '{}', this is node '{}': give each node its own directory, or "
                 "set the node's name back",
                 path, identity->node_name, options_.node_name);
  }
  return identity;
}

StatusOr<Probe> NodeStore::TryOut() {
  const std::string extents = options_.path + "/extents";
  StatusOr<Probe> probe = ProbeDirectory(extents, seams_.files.get());
  if (CodeOf(probe.status()) != ErrorCode::kResourceExhausted) return probe;
  if (state_.ReleaseReserveForFile(kMiB)) return ProbeDirectory(extents, seams_.files.get());
  return Error(ErrorCode::kResourceExhausted, "{}{}", DescribeInodes(), MessageOf(probe.status()));
}

std::string NodeStore::DescribeInodes() const {
  if (seams_.files->FreeFiles(options_.path) > 0) return "";
  return fmt::format("no inode is free on {}, whatever space there is: remove files; ",
                     state_.device());
}

Status NodeStore::OpenCatalogue(const Identity& identity, bool is_new) {
  const std::string& path = options_.path;
  const bool promised = !is_new && identity.format >= kDirectoryFormat;
  ASSIGN_OR_RETURN(promises_, Promises::Open(path, seams_.files, seams_.boot_id, !promised));
  rocksdb::Env* const base = seams_.env != nullptr ? seams_.env : rocksdb::Env::Default();
  env_ = rocksdb::NewCompositeEnv(PatientFiles(base->GetFileSystem(), &state_));
  ASSIGN_OR_RETURN(catalogue_,
                   Catalogue::Open({.path = path + "/catalogue",
                                    .env = env_.get(),
                                    .promises = promises_.get(),
                                    .create = is_new,
                                    .write_buffer_bytes = memory_.catalogue_buffer_bytes}));
  return OkStatus();
}

NodeStore::~NodeStore() {
  Shutdown();
  scrubber_.reset();
  queue_.reset();
  threads_.reset();
  state_.End();
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
  parts.queue = queue_.get();
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
    if (entry.is_directory(error) && std::filesystem::is_empty(path, error)) continue;
    if (!known.contains(path)) RETURN_IF_ERROR(RemoveOrphanFile(path));
  }
  return OkStatus();
}

Status NodeStore::RemoveOrphanFile(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  uint32_t number = 0;
  const auto [end, parsed] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool numbered = parsed == std::errc() && end == name.data() + name.size();
  uint32_t next_job = 0;
  {
    const MutexLock lock(mutex_);
    next_job = next_job_;
  }
  // A job that the catalogue has had, and deleted; one whose record was still to be written, so
  // that it is empty; or what the self-test left.
  std::error_code error;
  const bool explained = name == "probe" || (numbered && number > 0 && number < next_job) ||
                         std::filesystem::file_size(path, error) == 0;
  if (!explained) {
    return Error(ErrorCode::kCorrupt,
                 "{} holds payload of a job that the catalogue has never had: the catalogue has "
                 "lost records, or the file is from elsewhere; restore the directory from a copy, "
                 "or move the file away",
                 path);
  }
  const int removed = seams_.files->Remove(path);
  if (removed == 0) return OkStatus();
  return Error(ErrorCode::kCorrupt, "removing {}, which belongs to no job: {}", path,
               std::strerror(-removed));
}

Status NodeStore::RemoveOrphanValues() {
  std::set<uint32_t> known;
  for (const std::shared_ptr<JobStore>& job : AllJobs()) known.insert(job->number());
  uint32_t next_job = 0;
  {
    const MutexLock lock(mutex_);
    next_job = next_job_;
  }
  const std::unique_ptr<rocksdb::Iterator> iterator(values_.db->NewIterator({}));
  iterator->SeekToFirst();
  while (iterator->Valid()) {
    const rocksdb::Slice key = iterator->key();
    uint32_t job = 0;
    RETURN_IF_ERROR(JobOfValueKey({key.data(), key.size()}, &job));
    if (job >= next_job) {
      return Error(ErrorCode::kCorrupt,
                   "{} holds values of job number {}, which the catalogue has never had: it has "
                   "lost records; restore the directory from a copy, or move it away and restore a "
                   "checkpoint or an export",
                   values_.db->GetName(), job);
    }
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

void NodeStore::SetBudget() const {
  uint64_t budget = options_.budget_bytes;
  // A file system that was full when this started may have space by now. What others take of it
  // does not matter to files that have theirs.
  if (budget == 0) {
    budget =
        std::max(budget_bytes_.load(), seams_.files->FreeBytes(options_.path) + AllocatedBytes());
  }
  budget_bytes_ = budget;
  state_.set_stop_bytes(Percent(budget, options_.stop_percent));
  stop_checkpoints_bytes_ = Percent(budget, options_.stop_checkpoints_percent);
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
  StatusOr<std::shared_ptr<JobStore>> opened = MakeJob(std::move(job));
  if (CodeOf(opened.status()) == ErrorCode::kResourceExhausted) {
    return Error(ErrorCode::kResourceExhausted, "{}{}", DescribeInodes(),
                 MessageOf(opened.status()));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<JobStore> made, std::move(opened));
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
  ASSIGN_OR_RETURN(std::shared_ptr<JobStore> job, FindJob(name));
  return job;
}

StatusOr<std::shared_ptr<JobStore>> NodeStore::FindJob(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return Error(ErrorCode::kNotFound, "the storage has no job '{}'", name);
  return found->second;
}

// Without the lock while the job is waited for: what it waits for may need the list of jobs.
Status NodeStore::DeleteJob(const std::string& name) {
  RETURN_IF_ERROR(state_.Usable());
  ASSIGN_OR_RETURN(const std::shared_ptr<JobStore> job, FindJob(name));
  RETURN_IF_ERROR(job->Forget());
  {
    const MutexLock lock(mutex_);
    jobs_.erase(name);
  }
  return job->Destroy();
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
  snapshot.memory_bytes = memory_.bytes;
  snapshot.free_bytes = seams_.files->FreeBytes(options_.path);
  snapshot.read_bytes = state_.read_bytes;
  snapshot.written_bytes = state_.written_bytes;
  snapshot.full = state_.full();
  if (snapshot.full) snapshot.full = DescribeInodes() + *snapshot.full;
  snapshot.waiting_writes = state_.waiting();
  snapshot.failed = state_.failed();
  snapshot.scrubbed_bytes = state_.scrubbed_bytes;
  snapshot.scrub_cycles = state_.scrub_cycles;
  snapshot.damaged = state_.damaged();
  return snapshot;
}

}  // namespace luwu::persist
