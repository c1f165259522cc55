#include "client/src/node_link.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace luwu::client {

Link::~Link() {
  if (endpoint_ != nullptr) Close();
}

void Link::Close() {
  MutexLock lock(close_mutex_);
  endpoint_->Close();
}

Status Link::Adopt(std::unique_ptr<transport::Endpoint> endpoint) {
  endpoint_ = std::move(endpoint);
  if (endpoint_->kind() != transport::Kind::kShm) return OkStatus();
  const auto weights = endpoint_->MapReadable(kRegionWeights);
  const auto inbox = endpoint_->MapWritable(kRegionInbox);
  if (!weights || !inbox) {
    return Error(ErrorCode::kInternal, "{}: its regions are not mapped", owner_->Name());
  }
  weights_ = *weights;
  inbox_ = *inbox;
  return OkStatus();
}

void Link::OnNotify(uint32_t) { owner_->OnBoard(); }

void Link::OnDisconnect(const Status& why) {
  failed_.store(true, std::memory_order_release);
  owner_->OnLinkFailed(this, why);
}

NodeLink::NodeLink(NodeLinkOptions options, std::shared_ptr<transport::LocalRegion> board,
                   transport::Dialler* dialler, Monitor* monitor)
    : options_(std::move(options)),
      board_region_(std::move(board)),
      dialler_(dialler),
      monitor_(monitor),
      board_(board_region_->span(), options_.slots, options_.shards),
      ledger_(options_.slots),
      wants_(options_.wants),
      down_since_(std::chrono::steady_clock::now()),
      down_why_(Error(ErrorCode::kUnavailable, "not connected yet")) {}

std::string NodeLink::Name() const {
  return fmt::format("node {} ({})", options_.node.name, options_.node.control_address);
}

ByteSpan NodeLink::SlotMemory(const Link& link, uint32_t slot) const {
  const ByteSpan memory = is_shm() ? link.inbox() : mirror_.span();
  return memory.subspan(slot * options_.slot_bytes, options_.slot_bytes);
}

Status NodeLink::PrepareMirror() {
  ASSIGN_OR_RETURN(mirror_, AllocateHuge(options_.slots * options_.slot_bytes));
  if (options_.dial.kind == transport::Kind::kVerbs) {
    ASSIGN_OR_RETURN(mirror_pin_, dialler_->Pin(mirror_.span()));
  }
  return OkStatus();
}

Status NodeLink::Connect(TimePoint deadline) {
  auto link = std::make_shared<Link>(this);
  transport::DialOptions dial = options_.dial;
  dial.deadline = deadline;
  StatusOr<std::unique_ptr<transport::Endpoint>> dialled = dialler_->Dial(dial, link.get());
  if (!dialled.ok()) return Annotate(dialled.status(), Name());
  std::unique_ptr<transport::Endpoint> endpoint = *std::move(dialled);
  if (options_.faults.any()) {
    transport::FaultPlan plan = options_.faults;
    // Another seed for each link: a fault at its first request must not hit every link.
    plan.seed += links_made_.fetch_add(1);
    endpoint = transport::WrapWithFaults(std::move(endpoint), plan);
  }
  RETURN_IF_ERROR(link->Adopt(std::move(endpoint)));
  MonitorLock lock(*monitor_);
  if (shut_down_) return Error(ErrorCode::kCancelled, "the session is being closed");
  if (link->failed()) {
    return Error(ErrorCode::kUnavailable, "{}: the new link failed at once", Name());
  }
  link_ = std::move(link);
  monitor_->Broadcast(lock);
  return OkStatus();
}

Status NodeLink::Verdict(const MonitorLock& lock, TimePoint now) {
  if (!lost_.ok()) return lost_;
  if (board_.has_fault()) return Annotate(board_.fault(), Name());
  const std::optional<TimePoint> end = lost_at(lock);
  if (end && now >= *end) lost_ = Lost(lock, now);
  return lost_;
}

std::optional<TimePoint> NodeLink::lost_at(const MonitorLock&) const {
  if (link_ != nullptr || shut_down_) return std::nullopt;
  return down_since_ + Milliseconds(options_.patience_ms);
}

Status NodeLink::StillDown(const MonitorLock&, TimePoint now) const {
  const auto down_ms = std::chrono::duration_cast<Milliseconds>(now - down_since_).count();
  return Error(ErrorCode::kDeadline,
               "{}: no data link for {} ms ({}); repeat the call: the node counts as lost only "
               "after {} ms",
               Name(), down_ms, MessageOf(down_why_), options_.patience_ms);
}

Status NodeLink::Lost(const MonitorLock&, TimePoint now) const {
  const auto down_ms = std::chrono::duration_cast<Milliseconds>(now - down_since_).count();
  return Error(ErrorCode::kNodeLost,
               "{} is lost: no data link for {} ms ({}); check the daemon, then open a new session",
               Name(), down_ms, MessageOf(down_why_));
}

std::shared_ptr<Link> NodeLink::GoDown(const MonitorLock& lock, const Status& why) {
  std::shared_ptr<Link> old = std::exchange(link_, nullptr);
  down_since_ = std::chrono::steady_clock::now();
  down_why_ = why;
  // Views of its memory may be in use; and it must not be destroyed by its own event.
  retired_.push_back(old);
  monitor_->Broadcast(lock);
  return old;
}

void NodeLink::OnBoard() {
  MonitorLock lock(*monitor_);
  monitor_->BroadcastBoard(lock);
}

void NodeLink::OnLinkFailed(Link* link, const Status& why) {
  {
    MonitorLock lock(*monitor_);
    if (link_.get() != link) return;
    GoDown(lock, why);
  }
  LogWarning("link_down", "node={} why=\"{}\"", options_.node.name, MessageOf(why));
}

void NodeLink::Abort(const std::shared_ptr<Link>& link, const Status& why) {
  bool was_present = false;
  {
    MonitorLock lock(*monitor_);
    was_present = link_ == link;
    if (was_present) GoDown(lock, why);
  }
  if (was_present)
    LogWarning("link_down", "node={} why=\"{}\"", options_.node.name, MessageOf(why));
  link->Close();
}

void NodeLink::Shutdown() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MonitorLock lock(*monitor_);
    shut_down_ = true;
    links = std::exchange(retired_, {});
    if (link_ != nullptr) links.push_back(std::exchange(link_, nullptr));
    monitor_->Broadcast(lock);
  }
  for (const auto& link : links) link->Close();
}

void NodeLink::PinView(const MonitorLock&, uint64_t version) {
  if (link_ != nullptr) link_->view_version_ = std::max(link_->view_version_, version + 1);
}

std::vector<std::shared_ptr<Link>> NodeLink::DropDeadViews(const MonitorLock&,
                                                           uint64_t current_step) {
  // A view of version v ends when its layer is closed in step v + 1, thus before step v + 2.
  const auto is_dead = [&](const std::shared_ptr<Link>& link) {
    return link->view_version_ == 0 || current_step > link->view_version_;
  };
  std::vector<std::shared_ptr<Link>> dead;
  std::copy_if(retired_.begin(), retired_.end(), std::back_inserter(dead), is_dead);
  std::erase_if(retired_, is_dead);
  return dead;
}

}  // namespace luwu::client
