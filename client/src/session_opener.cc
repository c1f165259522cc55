#include "client/src/session_opener.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/wire/board.h"

namespace luwu::client {
namespace {

constexpr uint64_t kRetryMs = 100;
constexpr uint64_t kUndoMs = 2000;

// Lets time pass while peers come up or agree.
void Pause(uint64_t milliseconds, TimePoint deadline) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  const TimePoint until = std::min(DeadlineAfter(milliseconds), deadline);
  while (never.WaitUntil(mutex, until)) {
  }
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string HostName() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string NameOf(const Node& node) {
  return fmt::format("node {} ({})", node.name, node.control_address);
}

}  // namespace

// Mapping a big region takes longer than a lease; this renews the leases until the keeper does.
class SessionOpener::LeaseRenewal {
 public:
  explicit LeaseRenewal(SessionOpener* opener) : opener_(opener), thread_([this] { Run(); }) {}
  ~LeaseRenewal() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run() {
    uint64_t interval_ms = kUndoMs;
    for (const uint32_t node : opener_->active_) {
      interval_ms = std::min<uint64_t>(interval_ms, opener_->opened_[node].heartbeat_ms);
    }
    MutexLock lock(mutex_);
    while (!stopping_) {
      if (changed_.WaitUntil(mutex_, DeadlineAfter(std::max<uint64_t>(interval_ms, 1)))) continue;
      FanOut<uint64_t>(opener_->active_.size(), [&](size_t i, NodeRpc::Done<uint64_t> done) {
        opener_->parts_.rpcs[opener_->active_[i]]->Heartbeat(DeadlineAfter(interval_ms),
                                                             std::move(done));
      });
    }
  }

  SessionOpener* const opener_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

SessionOpener::SessionOpener(OpenOptions options)
    : options_(std::move(options)), deadline_(DeadlineAfter(options_.timeout_ms)) {}

StatusOr<std::shared_ptr<Session>> SessionOpener::Open() {
  RETURN_IF_ERROR(Validate());
  const Status prepared = Prepare();
  if (!prepared.ok()) {
    Undo();
    return prepared;
  }
  auto session = std::make_shared<Session>(std::move(parts_));
  constexpr bool kFarewell = true;
  const Status warm = session->Warm();
  if (!warm.ok()) session->Close(kFarewell);
  RETURN_IF_ERROR(warm);
  LogInfo("session_opened", "job={} rank={} nodes={} step={}", options_.job.name, options_.rank,
          active_.size(), current_step_);
  return session;
}

Status SessionOpener::Validate() const {
  RETURN_IF_ERROR(ValidateJobSpec(options_.job));
  if (options_.rank >= options_.job.world_size) {
    return Error(ErrorCode::kInvalidArgument, "rank {} does not exist in job '{}' of {} workers",
                 options_.rank, options_.job.name, options_.job.world_size);
  }
  if (options_.endpoints.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no endpoints: name at least one daemon as \"host:port\"");
  }
  if (options_.tcp_connections > transport::kConnectionsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} tcp connections per daemon: at most {}",
                 options_.tcp_connections, transport::kConnectionsMax);
  }
  return OkStatus();
}

Status SessionOpener::Prepare() {
  ASSIGN_OR_RETURN(parts_.dialler, transport::MakeDialler());
  RETURN_IF_ERROR(FindNodes());
  RETURN_IF_ERROR(ConnectNodes());
  RETURN_IF_ERROR(JoinJob());
  RETURN_IF_ERROR(OpenSessions());
  RETURN_IF_ERROR(AgreeOnStep());
  return LinkNodes();
}

template <typename T, typename Start>
StatusOr<std::vector<T>> SessionOpener::Call(const std::vector<uint32_t>& nodes,
                                             const Start& start) {
  std::vector<std::optional<T>> results(nodes.size());
  const TimePoint patience_end = std::min(deadline_, DeadlineAfter(options_.patience_ms));
  while (true) {
    std::vector<size_t> pending;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!results[i]) pending.push_back(i);
    }
    if (pending.empty()) break;
    std::vector<StatusOr<T>> answers =
        FanOut<T>(pending.size(), [&](size_t i, NodeRpc::Done<T> done) {
          const uint32_t node = nodes[pending[i]];
          start(node, *parts_.rpcs[node], std::move(done));
        });
    bool again = false;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (answers[i].ok()) {
        results[pending[i]] = *std::move(answers[i]);
        continue;
      }
      if (CodeOf(answers[i].status()) != ErrorCode::kUnavailable) return answers[i].status();
      if (std::chrono::steady_clock::now() >= patience_end) {
        return MakeError(ErrorCode::kNodeLost, MessageOf(answers[i].status()));
      }
      again = true;
    }
    if (again) Pause(kRetryMs, patience_end);
  }
  std::vector<T> values;
  for (auto& result : results) values.push_back(*std::move(result));
  return values;
}

Status SessionOpener::FindNodes() {
  const TimePoint patience_end = std::min(deadline_, DeadlineAfter(options_.patience_ms));
  Status last;
  while (true) {
    for (const std::string& endpoint : options_.endpoints) {
      NodeRpc rpc(endpoint, fmt::format("daemon {}", endpoint));
      const auto lists = FanOut<NodeList>(1, [&](size_t, NodeRpc::Done<NodeList> done) {
        rpc.ListNodes(patience_end, std::move(done));
      });
      if (lists[0].ok()) {
        nodes_ = lists[0]->nodes;
        fingerprint_ = lists[0]->fingerprint;
        return Annotate(ValidateNodes(nodes_), fmt::format("node list of daemon {}", endpoint));
      }
      last = lists[0].status();
    }
    // A host that does not even refuse shows as a deadline.
    const ErrorCode code = CodeOf(last);
    if (code != ErrorCode::kUnavailable && code != ErrorCode::kDeadline) return last;
    if (std::chrono::steady_clock::now() >= patience_end) break;
    Pause(kRetryMs, patience_end);
  }
  return MakeError(ErrorCode::kNodeLost, MessageOf(last));
}

Status SessionOpener::ConnectNodes() {
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    parts_.rpcs.push_back(
        std::make_unique<NodeRpc>(nodes_[node].control_address, NameOf(nodes_[node])));
    if (nodes_[node].weight > 0) active_.push_back(node);
  }
  boot_ids_.resize(nodes_.size());
  opened_.resize(nodes_.size());
  created_on_.resize(nodes_.size());
  ASSIGN_OR_RETURN(
      const std::vector<NodeList> lists,
      Call<NodeList>(active_, [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<NodeList> done) {
        rpc.ListNodes(deadline_, std::move(done));
      }));
  for (size_t i = 0; i < active_.size(); ++i) {
    const uint32_t node = active_[i];
    boot_ids_[node] = lists[i].boot_id;
    if (lists[i].fingerprint != fingerprint_ || lists[i].self != node) {
      return Error(ErrorCode::kSchemaMismatch,
                   "{} has another node list (or is not entry {} of it); all daemons of a cluster "
                   "need the same list",
                   NameOf(nodes_[node]), node);
    }
  }
  return OkStatus();
}

Status SessionOpener::JoinJob() {
  const uint32_t lead = Placement(nodes_, options_.job).lead();
  std::vector<uint32_t> others = active_;
  std::erase(others, lead);
  const auto join = [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<JoinReply> done) {
    rpc.CreateOrJoin(options_.job, epoch_, fingerprint_, deadline_, std::move(done));
  };
  ASSIGN_OR_RETURN(const std::vector<JoinReply> first, Call<JoinReply>({lead}, join));
  epoch_ = first[0].epoch;
  created_on_[lead] = first[0].created;
  parts_.created = first[0].created;
  parts_.loaded = first[0].loaded;
  for (const uint32_t node : others) created_on_[node] = first[0].created;  // perhaps, by now
  ASSIGN_OR_RETURN(const std::vector<JoinReply> rest, Call<JoinReply>(others, join));
  for (size_t i = 0; i < others.size(); ++i) {
    created_on_[others[i]] = rest[i].created;
    parts_.loaded = parts_.loaded && rest[i].loaded;
  }
  return OkStatus();
}

Status SessionOpener::OpenSessions() {
  const OpenRequest request{.job = options_.job.name,
                            .epoch = epoch_,
                            .rank = options_.rank,
                            .restart_count = options_.restart_count,
                            .host = HostName(),
                            .pid = static_cast<uint32_t>(::getpid())};
  const auto open = [&](uint32_t node, NodeRpc& rpc, NodeRpc::Done<OpenReply> done) {
    // Remembered at once: the others may fail, and this one must be closed again then.
    rpc.OpenSession(request, deadline_,
                    [this, node, done = std::move(done)](StatusOr<OpenReply> reply) {
                      if (reply.ok()) {
                        opened_[node] = *reply;
                        parts_.rpcs[node]->set_session(reply->session_id);
                      }
                      done(std::move(reply));
                    });
  };
  return Call<OpenReply>(active_, open).status();
}

// A commit that is being carried out reaches the nodes one after the other.
Status SessionOpener::AgreeOnStep() {
  std::vector<uint64_t> steps;
  for (const uint32_t node : active_) steps.push_back(opened_[node].current_step);
  while (true) {
    const auto [low, high] = std::minmax_element(steps.begin(), steps.end());
    current_step_ = *high;
    if (*low == *high) return OkStatus();
    if (std::chrono::steady_clock::now() >= deadline_) {
      return Error(ErrorCode::kDeadline, "{} is still at step {} while others are at step {}",
                   NameOf(nodes_[active_[low - steps.begin()]]), *low, *high);
    }
    Pause(kRetryMs, deadline_);
    ASSIGN_OR_RETURN(
        steps, Call<uint64_t>(active_, [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<uint64_t> done) {
          rpc.Heartbeat(deadline_, std::move(done));
        }));
  }
}

Status SessionOpener::LinkNodes() {
  const FabricOptions fabric{.epoch = epoch_,
                             .rank = options_.rank,
                             .verify = options_.verify,
                             .patience_ms = options_.patience_ms};
  parts_.fabric = std::make_unique<Fabric>(ModelPlan(options_.job, nodes_), fabric, current_step_);
  LeaseRenewal renewal(this);
  for (const uint32_t node : active_) {
    RETURN_IF_ERROR(LinkNode(node));
    parts_.peers.push_back({node, parts_.rpcs[node].get(), opened_[node].heartbeat_ms});
  }
  return OkStatus();
}

std::string SessionOpener::WhyNotShm(uint32_t node) const {
  if (nodes_[node].shm_path.empty()) return "the node list gives it no shm_path";
  if (boot_ids_[node] != BootId()) return "the daemon runs on another host";
  return "";
}

Status SessionOpener::LinkNode(uint32_t node) {
  ASSIGN_OR_RETURN(
      const std::shared_ptr<transport::LocalRegion> board,
      transport::LocalRegion::Create("luwu-board", parts_.fabric->plan().map(node).board_bytes(),
                                     transport::Access::kRemoteWrite));
  if (options_.transport != TransportChoice::kTcp) {
    const std::string obstacle = WhyNotShm(node);
    const bool forced = options_.transport == TransportChoice::kShm;
    if (!obstacle.empty() && forced) {
      return Error(ErrorCode::kUnsupported, "{} cannot be reached by shared memory: {}",
                   NameOf(nodes_[node]), obstacle);
    }
    if (obstacle.empty()) {
      const Status linked = TryLink(node, transport::Kind::kShm, board);
      if (linked.ok()) return linked;
      if (forced) return Annotate(linked, "shared memory was asked for");
      LogInfo("shm_failed", "node={} why=\"{}\"", nodes_[node].name, MessageOf(linked));
    }
  }
  return TryLink(node, transport::Kind::kTcp, board);
}

Status SessionOpener::TryLink(uint32_t node, transport::Kind kind,
                              const std::shared_ptr<transport::LocalRegion>& board) {
  using Regions = std::vector<transport::RegionDescriptor>;
  const bool is_shm = kind == transport::Kind::kShm;
  const uint32_t connections = is_shm ? 1 : options_.tcp_connections;
  const Regions ours = {{kRegionBoard, board->bytes(), transport::Access::kRemoteWrite}};
  ASSIGN_OR_RETURN(const std::vector<Regions> theirs,
                   Call<Regions>({node}, [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<Regions> done) {
                     rpc.ExchangeRegions(ours, connections, deadline_, std::move(done));
                   }));
  RETURN_IF_ERROR(CheckRegions(node, theirs[0]));
  NodeLinkOptions link;
  link.node = nodes_[node];
  link.dial.kind = kind;
  link.dial.address = is_shm ? nodes_[node].shm_path : nodes_[node].data_address;
  link.dial.session_id = opened_[node].session_id;
  link.dial.secret = opened_[node].secret;
  link.dial.exposed = {{kRegionBoard, board}};
  link.dial.expected = theirs[0];
  link.dial.connections = connections;
  link.slots = options_.job.slots_per_worker;
  link.slot_bytes = parts_.fabric->plan().map(node).slot_bytes();
  link.patience_ms = options_.patience_ms;
  link.faults = options_.faults;
  auto made = std::make_unique<NodeLink>(std::move(link), board, parts_.dialler.get(),
                                         &parts_.fabric->monitor());
  RETURN_IF_ERROR(made->Connect(deadline_));
  if (!is_shm) RETURN_IF_ERROR(made->PrepareMirror());
  parts_.fabric->AddNode(node, std::move(made));
  return OkStatus();
}

Status SessionOpener::CheckRegions(uint32_t node,
                                   const std::vector<transport::RegionDescriptor>& regions) const {
  const ShardMap& map = parts_.fabric->plan().map(node);
  const auto bytes_of = [&](transport::RegionId id) -> uint64_t {
    for (const auto& region : regions) {
      if (region.id == id) return region.bytes;
    }
    return 0;
  };
  if (bytes_of(kRegionWeights) >= map.weights_bytes() &&
      bytes_of(kRegionInbox) >= map.inbox_bytes()) {
    return OkStatus();
  }
  return Error(ErrorCode::kInternal,
               "{} exposes {} bytes of weights and {} of inbox; this library computes {} and {}: "
               "use the same release on both sides",
               NameOf(nodes_[node]), bytes_of(kRegionWeights), bytes_of(kRegionInbox),
               map.weights_bytes(), map.inbox_bytes());
}

void SessionOpener::Undo() {
  std::vector<uint32_t> opened;
  std::vector<uint32_t> created;
  for (const uint32_t node : active_) {
    if (opened_[node].session_id != 0) opened.push_back(node);
    if (created_on_[node]) created.push_back(node);
  }
  if (parts_.fabric != nullptr) {
    for (const uint32_t node : parts_.fabric->active()) parts_.fabric->node(node).Shutdown();
  }
  const TimePoint deadline = DeadlineAfter(kUndoMs);
  FanOut<Nothing>(opened.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
    parts_.rpcs[opened[i]]->CloseSession(deadline, std::move(done));
  });
  FanOut<Nothing>(created.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
    parts_.rpcs[created[i]]->DeleteJob(options_.job.name, epoch_, deadline, std::move(done));
  });
}

}  // namespace luwu::client
