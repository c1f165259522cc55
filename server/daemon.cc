#include "server/daemon.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/liveness.h"
#include "common/base/log.h"
#include "common/base/numa.h"
#include "common/base/sync.h"
#include "common/base/tls_hello.h"
#include "common/rpc/channel.h"
#include "common/rpc/tls.h"
#include "common/transport/connect.h"
#include "server/metrics/metrics_server.h"
#include "server/optim/optimizer.h"
#include "server/persist/node_storage.h"
#include "server/service/access_gate.h"
#include "server/service/checkpoint_maker.h"
#include "server/service/control_probe.h"
#include "server/service/control_server.h"
#include "server/service/job_registry.h"
#include "server/service/peer_client.h"
#include "server/service/peer_reporter.h"
#include "server/service/recovery_driver.h"
#include "server/service/service_context.h"
#include "server/service/status_snapshot.h"
#include "server/service/work_queue.h"
#include "server/session/session_table.h"
#include "server/step/update_pool.h"
#include "server/store/memory_budget.h"

namespace luwu {
namespace {

constexpr uint64_t kTickMs = 50;
constexpr uint32_t kTicksPerObservation = 20;
constexpr uint32_t kTicksPerProbe = 100;
constexpr uint64_t kGraceMs = 2000;
constexpr uint64_t kStoreMs = 10'000;
constexpr uint64_t kRebuildGraceMs = 200;
constexpr uint32_t kControlThreads = 2, kReadThreads = 2, kPointsThreads = 4, kListsThreads = 2;
constexpr size_t kTasksMax = 1024;

std::string ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// By the address that clients dial, as it is written; "127.example.org" is a name like any other.
bool IsLoopback(const std::string& address) {
  const bool number = address.find_first_not_of("0123456789.:") == std::string::npos;
  return (number && address.starts_with("127.")) || address.starts_with("localhost:") ||
         address.starts_with("[::1]:");
}

// The other end is not known: it has shown nothing that can be believed.
void LogFailedHandshake(const std::string& why) {
  static DenialLog log;
  log.Add({.identity = "none",
           .method = "",
           .job = "",
           .why = fmt::format("the TLS handshake failed: {}", why)});
}

double InGiB(uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

uint32_t ThreadsOf(const DaemonConfig& config) {
  if (config.optimizer_threads > 0) return config.optimizer_threads;
  return std::max(1u, std::thread::hardware_concurrency());
}

// A host whose NUMA nodes cannot be made out is taken for one node. Before any thread is started.
std::vector<UpdateSeat> SeatsOf(const DaemonConfig& config) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  StatusOr<std::vector<NumaNode>> nodes = std::vector<NumaNode>();
  if (config.optimizer_numa) nodes = ReadNumaNodes(kNumaRoot, allowed);
  if (!nodes.ok()) {
    LogWarning("numa_unknown", "error={}", ToString(nodes.status()));
    nodes = std::vector<NumaNode>();
  }
  if (nodes->size() > 1 && !LeavePagesInPlace()) {
    LogWarning("numa_balancing",
               "error=set_mempolicy was refused (a container without "
               "CAP_SYS_NICE?); pages may be moved unless kernel.numa_balancing is 0");
  }
  return SeatsFor(ThreadsOf(config), config.optimizer_pin, *nodes, allowed);
}

class RunningDaemon final : public Daemon {
 public:
  explicit RunningDaemon(const DaemonConfig& config)
      : config_(config),
        admission_(config.node().name),
        budget_(config.memory_budget_bytes),
        pool_(SeatsOf(config)) {}
  ~RunningDaemon() override { Stop("destroyed"); }

  Status Run() {
    RETURN_IF_ERROR(PrepareSecurity());
    RETURN_IF_ERROR(OpenStorage());
    RETURN_IF_ERROR(ListenForData());
    RETURN_IF_ERROR(ResolveControlPort());
    control_queue_.emplace("luwu-control", kControlThreads, kTasksMax);
    read_queue_.emplace("luwu-read", kReadThreads, kTasksMax);
    points_queue_.emplace("luwu-points", kPointsThreads, kTasksMax);
    lists_queue_.emplace("luwu-lists", kListsThreads, kTasksMax);
    MakeRegistry();
    MakeRecovery();
    MakeStatus();
    RETURN_IF_ERROR(ListenForMetrics());
    RETURN_IF_ERROR(ListenForControl());
    housekeeping_ = std::thread([this] { Housekeep(); });
    pthread_setname_np(housekeeping_.native_handle(), "luwu-house");
    admission_.Open();
    server_->SetServing(true);
    if (recovery_ != nullptr) recovery_->Start();
    LogInfo("node_started",
            "node={} control={} data={} shm={} memory={} threads={} numa_nodes={} kernel={}",
            config_.node().name, config_.node().control_address, config_.node().data_address,
            config_.node().shm_path, config_.memory_budget_bytes, pool_.threads(),
            pool_.homes().homes(), optim::KernelName());
    if (gate_ == nullptr && !IsLoopback(config_.node().control_address)) {
      LogWarning("control_plain_text",
                 "node={} control={} why=\"without [tls] whoever reaches the port may do "
                 "everything\" action=\"see docs/operating/security.md\"",
                 config_.node().name, config_.node().control_address);
    }
    return OkStatus();
  }

  void Stop(const std::string& reason) override {
    if (std::exchange(stopped_, true)) return;
    const std::string& node = config_.node().name;
    const bool ran = housekeeping_.joinable();
    if (ran) LogInfo("node_stopping", "node={} reason={}", node, reason);
    const Status why = Error(ErrorCode::kUnavailable, "node {} is shutting down", node);
    admission_.Close(why);
    // Its library looks every two seconds whether it should end: beside everything else.
    const auto page_ended =
        std::async(std::launch::async, [page = std::move(metrics_)]() mutable { page.reset(); });
    if (storage_ != nullptr && storage_->Snapshot().full) EndAsItIs(why);
    if (registry_ != nullptr) registry_->StoreOpenSteps(DeadlineAfter(kStoreMs));
    if (peers_ != nullptr) peers_->Shutdown();
    if (storage_ != nullptr) storage_->Shutdown();
    if (recovery_ != nullptr) recovery_->Stop();
    if (registry_ != nullptr) registry_->Shutdown(why);  // ends the calls a rebuild waits for
    StopRebuilding();
    if (server_ != nullptr) server_->SetServing(false);
    if (acceptor_ != nullptr) acceptor_->Shutdown();
    if (server_ != nullptr) server_->Shutdown(kGraceMs);
    for (auto* queue : {&control_queue_, &read_queue_, &points_queue_, &lists_queue_}) {
      if (*queue) (*queue)->Shutdown();
    }
    StopHousekeeping();
    checkpoints_.reset();
    recovery_.reset();
    registry_.reset();
    peers_.reset();
    storage_.reset();
    sessions_.Sweep();
    acceptor_.reset();
    if (ran) LogInfo("node_stopped", "node={}", node);
  }

  ServiceView Look() const override {
    ServiceView view;
    const AbsentJob* lost = nullptr;
    const std::vector<AbsentJob> absent = registry_->AbsentJobs();
    for (const AbsentJob& job : absent) {
      view.pending = view.pending || job.phase == JobPhase::kRecovering;
      view.working = view.working || job.working;
      if (lost == nullptr || (job.working && !lost->working)) lost = &job;
    }
    view.text =
        fmt::format("jobs served: {}; memory {:.1f} of {:.1f} GiB", registry_->Jobs().size(),
                    InGiB(budget_.used()), InGiB(config_.memory_budget_bytes));
    if (lost != nullptr) {
      view.text = fmt::format("jobs not served: {} ({}: {}); {}", absent.size(), lost->name,
                              lost->detail, view.text);
    }
    return view;
  }

  const DaemonConfig& config() const override { return config_; }
  uint16_t control_port() const override { return control_port_; }
  uint16_t data_port() const override { return acceptor_ != nullptr ? data_port_ : uint16_t{0}; }
  uint16_t metrics_port() const override {
    return metrics_ != nullptr ? metrics_->port() : uint16_t{0};
  }

 private:
  // Writes wait for space, some inside RocksDB, which ends the process by an assertion when they
  // are told that there is none. What is on disk is whole at any moment, so it is left as it is.
  [[noreturn]] void EndAsItIs(const Status& why) {
    if (registry_ != nullptr) registry_->Shutdown(why);  // answers those who wait
    if (acceptor_ != nullptr) acceptor_->Shutdown();
    LogWarning("node_stopped", "node={} why=\"the disk is full, and writes wait for space\"",
               config_.node().name);
    std::_Exit(0);
  }

  Status PrepareSecurity() {
    const TlsConfig& tls = config_.tls;
    if (tls.files.empty()) return OkStatus();
    ASSIGN_OR_RETURN(credentials_, rpc::MakeCredentials(tls.files, tls.refresh_s));
    rpc::ObserveFailedHandshakes(LogFailedHandshake);
    gate_ = std::make_unique<AccessGate>(config_.access, [this](uint64_t session_id) {
      const StatusOr<std::shared_ptr<Session>> session = sessions_.Find(session_id);
      const std::shared_ptr<Job> job = session.ok() ? (*session)->job() : nullptr;
      return job == nullptr ? std::string() : job->spec().name;
    });
    return OkStatus();
  }

  // First of all: nobody may be answered before it is known what this node has.
  Status OpenStorage() {
    const StorageConfig& config = config_.storage;
    if (config.path.empty()) return OkStatus();
    persist::StorageOptions options;
    options.path = config.path;
    options.node_name = config_.node().name;
    options.engine = config.engine;
    options.budget_bytes = config.budget_bytes;
    options.warn_percent = config.warn_percent;
    options.stop_checkpoints_percent = config.stop_checkpoints_percent;
    options.stop_percent = config.stop_percent;
    options.scrub_bytes_per_s = config.scrub_bytes_per_s;
    options.memory_budget_bytes = config_.memory_budget_bytes;
    StatusOr<std::unique_ptr<persist::NodeStorage>> storage = persist::NodeStorage::Open(options);
    if (!storage.ok()) return Annotate(storage.status(), "data directory " + config.path);
    storage_ = *std::move(storage);
    StatusOr<MemoryReservation> memory =
        budget_.Reserve(storage_->Snapshot().memory_bytes, "RocksDB of the data directory");
    if (!memory.ok()) return memory.status();
    storage_memory_ = *std::move(memory);
    return OkStatus();
  }

  Status ListenForData() {
    Node& node = config_.nodes[config_.self];
    if (node.weight == 0) return OkStatus();  // serves no shards
    StatusOr<std::unique_ptr<transport::Acceptor>> acceptor =
        transport::MakeAcceptor({.tcp_address = node.data_address,
                                 .shm_path = node.shm_path,
                                 .shm_allowed_uids = config_.shm_allowed_uids,
                                 .verbs = config_.rdma},
                                &sessions_);
    if (!acceptor.ok()) return Annotate(acceptor.status(), "data plane");
    acceptor_ = *std::move(acceptor);
    data_port_ = acceptor_->tcp_port();
    if (!node.data_address.empty()) {
      ASSIGN_OR_RETURN(HostPort address, ParseHostPort(node.data_address));
      address.port = data_port_;
      node.data_address = address.text();
    }
    return OkStatus();
  }

  // Clients are told the node list, so the port must be known before the first call.
  Status ResolveControlPort() {
    Node& node = config_.nodes[config_.self];
    const StatusOr<uint16_t> port = ProbePort(node.control_address);
    if (!port.ok()) return Annotate(port.status(), "control plane");
    control_port_ = *port;
    ASSIGN_OR_RETURN(HostPort address, ParseHostPort(node.control_address));
    address.port = control_port_;
    node.control_address = address.text();
    return OkStatus();
  }

  void MakeRegistry() {
    fingerprint_ = FingerprintOf(config_.nodes);
    JobRegistry::Options options;
    options.nodes = config_.nodes;
    options.self = config_.self;
    options.lease_ms = config_.lease_ms;
    options.heartbeat_ms = config_.heartbeat_ms;
    options.storage = storage_.get();
    options.peer_reporter = [this](const std::string& job, uint64_t epoch) {
      return MakeReporter(job, epoch);
    };
    registry_ = std::make_unique<JobRegistry>(
        std::move(options),
        Job::Environment{
            .budget = &budget_, .pool = &pool_, .sessions = &sessions_, .clock = &clock_},
        &*control_queue_);
  }

  // Before the control plane listens: a call must not find a job missing that is on disk.
  void MakeRecovery() {
    peers_ = MakePeerClient(config_.nodes, config_.self, fingerprint_, credentials_);
    registry_->AdoptStored();
    if (storage_ != nullptr) {
      recovery_ = std::make_unique<RecoveryDriver>(registry_.get(), peers_.get());
    }
    checkpoints_ =
        std::make_unique<CheckpointMaker>(registry_.get(), peers_.get(), recovery_.get());
  }

  std::unique_ptr<StepReporter> MakeReporter(const std::string& job, uint64_t epoch) const {
    const Node& lead = registry_->lead_node();
    PeerReporterOptions options;
    options.channel = rpc::MakeChannel(lead.control_address, credentials_);
    options.job = job;
    options.epoch = epoch;
    options.self = config_.self;
    options.nodes_fingerprint = fingerprint_;
    options.lead_name = lead.name;
    options.lead_address = lead.control_address;
    options.give_up_ms = config_.lease_ms;
    return MakePeerReporter(std::move(options));
  }

  void MakeStatus() {
    StatusCollector::Sources sources;
    sources.constants.node = config_.node().name;
    sources.constants.version = LUWU_VERSION;
    sources.constants.pid = static_cast<uint32_t>(::getpid());
    sources.constants.memory_budget_bytes = config_.memory_budget_bytes;
    sources.constants.update_threads = pool_.threads();
    sources.constants.kernel = std::string(optim::KernelName());
    sources.jobs = [this] {
      std::vector<JobSnapshot> snapshots;
      for (const auto& job : registry_->Jobs()) snapshots.push_back(job->Snapshot());
      return snapshots;
    };
    sources.absent_jobs = [this] { return registry_->AbsentJobs(); };
    if (storage_ != nullptr) sources.storage = [this] { return storage_->Snapshot(); };
    sources.memory_used_bytes = [this] { return budget_.used(); };
    if (gate_ != nullptr) {
      sources.identities = [this] { return UseByIdentity(config_.access, sessions_, *registry_); };
    }
    sources.storage_warn_percent = config_.storage.warn_percent;
    sources.lease_ms = config_.lease_ms;
    sources.clock = &clock_;
    status_ = std::make_unique<StatusCollector>(std::move(sources));
  }

  Status ListenForMetrics() {
    if (config_.metrics_listen.empty()) return OkStatus();
    status_->Observe();  // so that the first scrape finds something
    StatusOr<std::unique_ptr<MetricsServer>> server = MetricsServer::Start(
        config_.metrics_listen, [status = status_.get()] { return status->Latest(); });
    if (!server.ok()) return Annotate(server.status(), "metrics page");
    metrics_ = *std::move(server);
    return OkStatus();
  }

  Status ListenForControl() {
    ServiceContext services;
    services.responder = {.node = config_.node().name, .admission = &admission_};
    services.access = gate_.get();
    services.quotas = gate_ == nullptr ? nullptr : &quotas_;
    services.credentials = credentials_;
    services.jobs = registry_.get();
    services.sessions = &sessions_;
    services.control_queue = &*control_queue_;
    services.read_queue = &*read_queue_;
    services.points_queue = &*points_queue_;
    services.lists_queue = &*lists_queue_;
    services.checkpoints = checkpoints_.get();
    services.recovery = recovery_.get();
    services.status = status_.get();
    services.data_plane = acceptor_.get();
    services.rdma = config_.rdma;
    services.heartbeat_ms = config_.heartbeat_ms;
    services.lease_ms = config_.lease_ms;
    services.nodes_fingerprint = fingerprint_;
    services.boot_id = ReadBootId();
    const ControlSecurity security = {config_.tls.files, config_.tls.refresh_s,
                                      config_.local_socket};
    ASSIGN_OR_RETURN(server_,
                     ControlServer::Start(config_.node().control_address, security, services));
    return OkStatus();
  }

  // From here on the server is the main thread's alone.
  void StopRebuilding() {
    MutexLock lock(server_mutex_);
    rebuilds_ = false;
  }

  // Calls in progress are cut off; their clients call again. On the control queue, because calls
  // that wait for a commit end by their deadlines, which are housekeeping's.
  void RebuildControl() {
    MutexLock lock(server_mutex_);
    if (!rebuilds_) return;
    LogError("CONTROL_PORT_DEAD",
             "node={} control={} why=\"nobody is accepted any more; the limit "
             "of open files may be too low (LimitNOFILE)\" action=\"listening anew\"",
             config_.node().name, config_.node().control_address);
    if (server_ != nullptr) server_->Shutdown(kRebuildGraceMs);
    server_.reset();
    if (const Status status = ListenForControl(); !status.ok()) {
      LogError("control_port_lost", "node={} why=\"{}\"", config_.node().name, ToString(status));
      return;
    }
    server_->SetServing(true);
  }

  void PostRebuild() {
    if (rebuilding_.exchange(true)) return;
    const bool posted = control_queue_->Post([this] {
      RebuildControl();
      rebuilding_ = false;
    });
    if (!posted) rebuilding_ = false;
  }

  // Leases, deadlines and late links; and every second a look at the whole.
  void Housekeep() {
    LiveLoop live("luwu-house");
    uint32_t ticks = 0;
    ControlProbe probe(config_.node().control_address,
                       config_.tls.files.empty() ? "" : TlsClientHello());
    while (true) {
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        wake_.WaitUntil(mutex_, DeadlineAfter(kTickMs));
        if (stopping_) return;
      }
      live.Begin();
      LUWU_FAILPOINT("house.tick");
      registry_->Tick(clock_.Now());
      sessions_.Sweep();
      if (++ticks % kTicksPerObservation == 0) status_->Observe();
      if (ticks % kTicksPerProbe == 0 && probe.IsDead()) PostRebuild();
      live.End();
    }
  }

  void StopHousekeeping() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    if (housekeeping_.joinable()) housekeeping_.join();
  }

  DaemonConfig config_;
  const SteadyClock clock_;
  Admission admission_;
  MemoryBudget budget_;
  UpdatePool pool_;
  rpc::Credentials credentials_;  // null without TLS
  SessionTable sessions_;
  std::unique_ptr<AccessGate> gate_;  // null without TLS
  QuotaBook quotas_{&sessions_, config_.node().name};
  MemoryReservation storage_memory_;
  std::unique_ptr<persist::NodeStorage> storage_;  // null without a data directory
  std::unique_ptr<transport::Acceptor> acceptor_;
  uint16_t control_port_ = 0;
  uint16_t data_port_ = 0;
  uint64_t fingerprint_ = 0;
  std::optional<WorkQueue> control_queue_, read_queue_, points_queue_, lists_queue_;
  std::unique_ptr<PeerClient> peers_;
  std::unique_ptr<JobRegistry> registry_;
  std::unique_ptr<RecoveryDriver> recovery_;  // null without a data directory
  std::unique_ptr<CheckpointMaker> checkpoints_;
  std::unique_ptr<StatusCollector> status_;
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<ControlServer> server_;
  Mutex server_mutex_;  // while server_ may be rebuilt
  bool rebuilds_ LUWU_GUARDED_BY(server_mutex_) = true;
  std::atomic<bool> rebuilding_{false};
  std::thread housekeeping_;
  bool stopped_ = false;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
};

}  // namespace

StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonConfig& config) {
  auto daemon = std::make_unique<RunningDaemon>(config);
  if (const Status status = daemon->Run(); !status.ok()) {
    daemon->Stop("start failed");
    return status;
  }
  return daemon;
}

}  // namespace luwu
