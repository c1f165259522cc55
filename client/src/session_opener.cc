#include "client/src/session_opener.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "client/src/node_finder.h"
#include "common/base/log.h"
#include "common/wire/board.h"

namespace luwu::client {
namespace {

constexpr uint64_t kUndoMs = 2000;
constexpr int kAttemptsMax = 5;

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

}  // namespace

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
  if (options_.tcp_connections > transport::kConnectionsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} tcp connections per daemon: at most {}",
                 options_.tcp_connections, transport::kConnectionsMax);
  }
  return OkStatus();
}

Status SessionOpener::Prepare() {
  ASSIGN_OR_RETURN(credentials_, CredentialsFor(options_.tls));
  ASSIGN_OR_RETURN(parts_.dialler, transport::MakeDialler(options_.rdma));
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
  std::vector<Status> failures(nodes.size());  // why the connection failed last
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
      Status& failure = failures[pending[i]];
      const ErrorCode code = CodeOf(answers[i].status());
      if (code == ErrorCode::kUnavailable) {
        failure = answers[i].status();
      } else if (code != ErrorCode::kDeadline || failure.ok()) {
        return answers[i].status();
      }  // else the last attempt was cut short, and the failure before it says more
      if (std::chrono::steady_clock::now() >= patience_end) {
        return MakeError(ErrorCode::kNodeLost, MessageOf(failure));
      }
      again = true;
    }
    if (again) PauseBeforeRetry(patience_end);
  }
  std::vector<T> values;
  for (auto& result : results) values.push_back(*std::move(result));
  return values;
}

Status SessionOpener::FindNodes() {
  const TimePoint patience_end = std::min(deadline_, DeadlineAfter(options_.patience_ms));
  ASSIGN_OR_RETURN(NodeList list,
                   client::FindNodes(options_.endpoints, patience_end, credentials_));
  nodes_ = std::move(list.nodes);
  fingerprint_ = list.fingerprint;
  return OkStatus();
}

Status SessionOpener::ConnectNodes() {
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    parts_.rpcs.push_back(std::make_unique<NodeRpc>(nodes_[node].control_address,
                                                    NameOf(nodes_[node]), credentials_));
    if (nodes_[node].weight > 0) active_.push_back(node);
  }
  boot_ids_.resize(nodes_.size());
  joined_.resize(nodes_.size());
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
  joined_[lead] = first[0];
  created_on_[lead] = first[0].created;
  parts_.created = first[0].created;
  parts_.lead = lead;
  parts_.lineage = first[0].lineage;
  parts_.loaded = first[0].loaded;
  for (const uint32_t node : others) created_on_[node] = first[0].created;  // perhaps, by now
  ASSIGN_OR_RETURN(const std::vector<JoinReply> rest, Call<JoinReply>(others, join));
  for (size_t i = 0; i < others.size(); ++i) {
    joined_[others[i]] = rest[i];
    created_on_[others[i]] = rest[i].created;
    parts_.loaded = parts_.loaded && rest[i].loaded;
  }
  RETURN_IF_ERROR(CheckParts(lead));
  return options_.must_train ? CheckGoesOn() : OkStatus();
}

Status SessionOpener::CheckGoesOn() const {
  for (const uint32_t node : active_) {
    const std::string& failure = joined_[node].failure;
    if (failure.empty()) continue;
    return Error(
        ErrorCode::kJobFailed,
        "job '{}' has failed in step {} and accepts no further step ({}: {}); go back to a "
        "checkpoint (luwuctl checkpoint list {}, ... restore), or read the masters if you "
        "need them, delete the job (luwuctl delete {}) and start again",
        options_.job.name, joined_[node].current_step, NameOf(nodes_[node]), failure,
        options_.job.name, options_.job.name);
  }
  return OkStatus();
}

// A daemon that was restarted empty. The lead answered first, and a step ends on all nodes or on
// none: no node that had its part can be without weights now.
Status SessionOpener::CheckParts(uint32_t lead) const {
  const uint64_t step = joined_[lead].current_step;
  for (const uint32_t node : active_) {
    const JoinReply& part = joined_[node];
    if (step == 0 || (part.loaded && !part.created)) continue;
    return Error(
        ErrorCode::kJobFailed,
        "{} is at step {}, the others at step {}: its part of job '{}' is lost; delete the "
        "job and start again (or restore a checkpoint)",
        NameOf(nodes_[node]), part.current_step, step, options_.job.name);
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
  parts_.heartbeats = std::make_unique<Heartbeats>();
  const auto open = [&](uint32_t node, NodeRpc& rpc, NodeRpc::Done<OpenReply> done) {
    // Remembered at once: the others may fail, and this one must be closed again then. And its
    // lease runs already, however long the others take.
    rpc.OpenSession(request, deadline_,
                    [this, node, done = std::move(done)](StatusOr<OpenReply> reply) {
                      if (reply.ok()) {
                        opened_[node] = *reply;
                        NodeRpc* const opened = parts_.rpcs[node].get();
                        opened->set_session(reply->session_id);
                        parts_.heartbeats->Add(node, opened, reply->heartbeat_ms);
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
    const Status behind =
        Error(ErrorCode::kDeadline, "{} is still at step {} while others are at step {}",
              NameOf(nodes_[active_[low - steps.begin()]]), *low, *high);
    PauseBeforeRetry(deadline_);
    if (std::chrono::steady_clock::now() >= deadline_) return behind;
    StatusOr<std::vector<uint64_t>> answers =
        Call<uint64_t>(active_, [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<uint64_t> done) {
          rpc.Heartbeat(deadline_, std::move(done));
        });
    if (CodeOf(answers.status()) == ErrorCode::kDeadline) return behind;
    RETURN_IF_ERROR(answers.status());
    steps = *std::move(answers);
  }
}

Status SessionOpener::LinkNodes() {
  const FabricOptions fabric{.epoch = epoch_,
                             .rank = options_.rank,
                             .verify = options_.verify,
                             .patience_ms = options_.patience_ms};
  std::vector<uint32_t> window_slots;
  for (const OpenReply& opened : opened_) window_slots.push_back(opened.window_slots);
  parts_.fabric = std::make_unique<Fabric>(ModelPlan(options_.job, nodes_, window_slots), fabric,
                                           current_step_);
  for (const uint32_t node : active_) RETURN_IF_ERROR(LinkNode(node));
  return OkStatus();
}

std::string SessionOpener::WhyNot(uint32_t node, transport::Kind kind) const {
  if (kind == transport::Kind::kTcp) return "";
  if (kind == transport::Kind::kVerbs) {
    const Status usable = parts_.dialler->CheckVerbs();
    return usable.ok() ? "" : MessageOf(usable);
  }
  if (nodes_[node].shm_path.empty()) return "the node list gives it no shm_path";
  if (boot_ids_[node] != BootId()) return "the daemon runs on another host";
  return "";
}

// What the caller asked for, or the best that works.
Status SessionOpener::LinkNode(uint32_t node) {
  ASSIGN_OR_RETURN(
      const std::shared_ptr<transport::LocalRegion> board,
      transport::LocalRegion::Create("luwu-board", parts_.fabric->plan().map(node).board_bytes(),
                                     transport::Access::kRemoteWrite));
  using transport::Kind;
  for (const Kind kind : {Kind::kShm, Kind::kVerbs, Kind::kTcp}) {
    const bool forced = options_.transport == static_cast<TransportChoice>(kind);
    if (!forced && options_.transport != TransportChoice::kAuto) continue;
    const std::string obstacle = WhyNot(node, kind);
    const std::string asked = fmt::format("{} was asked for", transport::KindName(kind));
    if (!obstacle.empty() && forced) {
      return Error(ErrorCode::kUnsupported, "{} cannot be reached by {}: {}", NameOf(nodes_[node]),
                   kind == Kind::kShm ? "shared memory" : "RDMA", obstacle);
    }
    if (!obstacle.empty()) continue;
    const Status linked = TryLink(node, kind, board);
    if (linked.ok() || kind == Kind::kTcp) return linked;
    if (forced) return Annotate(linked, asked);
    LogInfo("link_not_made", "node={} kind={} why=\"{}\"", nodes_[node].name,
            transport::KindName(kind), MessageOf(linked));
  }
  return Error(ErrorCode::kInternal, "{}: no transport was tried", NameOf(nodes_[node]));
}

Status SessionOpener::TryLink(uint32_t node, transport::Kind kind,
                              const std::shared_ptr<transport::LocalRegion>& board) {
  using Regions = std::vector<transport::RegionDescriptor>;
  const bool is_shm = kind == transport::Kind::kShm;
  const bool verbs = kind == transport::Kind::kVerbs;
  const uint32_t most = verbs ? transport::kQueuePairsMax : transport::kConnectionsMax;
  const uint32_t connections = is_shm ? 1 : std::min(options_.tcp_connections, most);
  const Regions ours = {{kRegionBoard, board->bytes(), transport::Access::kRemoteWrite}};
  ASSIGN_OR_RETURN(const std::vector<Regions> theirs,
                   Call<Regions>({node}, [&](uint32_t, NodeRpc& rpc, NodeRpc::Done<Regions> done) {
                     rpc.ExchangeRegions(ours, {connections, verbs}, deadline_, std::move(done));
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
  const ShardMap& map = parts_.fabric->plan().map(node);
  link.slots = options_.job.slots_per_worker;
  link.slot_bytes = map.slot_bytes();
  link.shards = map.shard_count();
  link.wants = WantLedger(map, options_.job.world_size);
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
  if (parts_.heartbeats != nullptr) parts_.heartbeats->Stop();
  const TimePoint deadline = DeadlineAfter(kUndoMs);
  FanOut<Nothing>(opened.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
    parts_.rpcs[opened[i]]->CloseSession(deadline, std::move(done));
  });
  FanOut<Nothing>(created.size(), [&](size_t i, NodeRpc::Done<Nothing> done) {
    parts_.rpcs[created[i]]->DeleteJob({.job = options_.job.name, .epoch = epoch_}, deadline,
                                       std::move(done));
  });
}

StatusOr<std::shared_ptr<Session>> OpenSession(const OpenOptions& options) {
  const TimePoint deadline = DeadlineAfter(options.timeout_ms);
  for (int attempt = 1;; ++attempt) {
    OpenOptions now = options;
    now.timeout_ms = static_cast<uint32_t>(MillisecondsUntil(deadline));
    StatusOr<std::shared_ptr<Session>> session = SessionOpener(std::move(now)).Open();
    // The lead was asked just before it began to roll back; from now on it says so.
    const ErrorCode code = CodeOf(session.status());
    const bool moved = code == ErrorCode::kRolledBack || code == ErrorCode::kStaleEpoch ||
                       code == ErrorCode::kFenced;
    if (!moved || attempt == kAttemptsMax || MillisecondsUntil(deadline) == 0) return session;
    PauseBeforeRetry(deadline);
  }
}

}  // namespace luwu::client
