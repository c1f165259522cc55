#include "server/session/session.h"

#include <functional>
#include <utility>

#include "common/base/check.h"
#include "common/wire/board.h"
#include "common/wire/window.h"

namespace luwu {

using transport::Access;
using transport::RegionDescriptor;

std::string DescribeWorker(const WorkerIdentity& identity) {
  return fmt::format("rank {} (host {}, pid {})", identity.rank, identity.host, identity.pid);
}

Session::Session(SessionOptions options)
    : options_(std::move(options)), secret_(RandomSecret()), board_(options_.board) {
  LUWU_CHECK(options_.sink != nullptr && options_.clock != nullptr, "a session has its owners");
  MutexLock lock(mutex_);
  inbox_ = std::move(options_.inbox);
  lease_end_ = options_.clock->Now() + Milliseconds(options_.lease_ms);
}

Session::~Session() {
  MutexLock lock(mutex_);
  LUWU_CHECK(endpoint_ == nullptr && retired_.empty(), "a session's link is closed before its end");
}

Status Session::CheckLocked() const { return end_; }

Status Session::Check() const {
  MutexLock lock(mutex_);
  return CheckLocked();
}

StatusOr<std::vector<RegionDescriptor>> Session::SetClientRegions(
    const std::vector<RegionDescriptor>& regions, uint32_t connections) {
  const RegionDescriptor board{kRegionBoard, options_.board.bytes(), Access::kRemoteWrite};
  if (regions.size() != 1 || regions[0] != board) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} must expose exactly one region: its board, id {}, {} bytes, writable; it "
                 "offered {} regions{}",
                 DescribeWorker(identity()), board.id, board.bytes, regions.size(),
                 regions.empty() ? ""
                                 : fmt::format(", the first with id {} and {} bytes", regions[0].id,
                                               regions[0].bytes));
  }
  if (connections == 0 || connections > transport::kConnectionsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} wants {} data connections; 1 to {} are possible",
                 DescribeWorker(identity()), connections, transport::kConnectionsMax);
  }
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckLocked());
  exchanged_ = true;
  connections_ = connections;
  return std::vector<RegionDescriptor>{
      {kRegionWeights, options_.weights->bytes(), Access::kRemoteRead},
      {kRegionInbox, inbox_->bytes(), Access::kRemoteWrite}};
}

Status Session::Renew() {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckLocked());
  lease_end_ = options_.clock->Now() + Milliseconds(options_.lease_ms);
  return OkStatus();
}

StatusOr<transport::SessionTerms> Session::Terms() const {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckLocked());
  if (!exchanged_) {
    return Error(ErrorCode::kState, "{} dials before it has exchanged region descriptors",
                 DescribeWorker(identity()));
  }
  transport::SessionTerms terms;
  terms.secret = secret_;
  terms.exposed = {{kRegionWeights, options_.weights}, {kRegionInbox, inbox_}};
  terms.expected = {{kRegionBoard, options_.board.bytes(), Access::kRemoteWrite}};
  terms.connections = connections_;
  // One for the job on this node: its weights are one region for all sessions.
  terms.domain = std::hash<std::shared_ptr<transport::LocalRegion>>()(options_.weights);
  return terms;
}

bool Session::Link(std::unique_ptr<transport::Endpoint>& endpoint) {
  {
    MutexLock lock(mutex_);
    if (fenced_) return false;
    RetireLink();
    endpoint_ = std::move(endpoint);
    link_state_ = LinkState::kUp;
    // Under the lock, so that it cannot come after a CloseLink that has seen the endpoint.
    board_.Attach(endpoint_);
  }
  board_.Flush();
  return true;
}

void Session::RetireLink() {
  if (endpoint_ == nullptr) return;
  fetched_before_ += endpoint_->served_bytes();
  retired_.push_back(std::move(endpoint_));
}

uint64_t Session::fetched_bytes() const {
  MutexLock lock(mutex_);
  return fetched_before_ + (endpoint_ == nullptr ? 0 : endpoint_->served_bytes());
}

void Session::OnNotify(uint32_t immediate) {
  if ((immediate & kWantBit) != 0) {
    options_.sink->OnWant(*this, immediate);
  } else {
    options_.sink->OnSlot(*this, immediate);
  }
}

void Session::OnDisconnect(const Status& why) {
  {
    MutexLock lock(mutex_);
    link_state_ = LinkState::kDown;
  }
  options_.sink->OnUnlinked(*this, why);
}

bool Session::End(const Status& why, bool fenced) {
  LUWU_CHECK(!why.ok(), "a session ends for a reason");
  MutexLock lock(mutex_);
  fenced_ = fenced_ || fenced;
  if (!end_.ok()) return false;
  end_ = why;
  ended_at_ = options_.clock->Now();
  return true;
}

bool Session::EndWithFault(const Status& fault) {
  if (!End(fault, false)) return false;
  board_.SetFault(fault);
  return true;
}

bool Session::EndFenced(const Status& why) { return End(why, true); }

void Session::CloseLink() {
  MutexLock close_lock(close_mutex_);
  std::vector<std::shared_ptr<transport::Endpoint>> links;
  {
    MutexLock lock(mutex_);
    fenced_ = true;
    if (endpoint_ != nullptr) link_state_ = LinkState::kDown;
    RetireLink();
    links.swap(retired_);
  }
  board_.Detach();
  for (const auto& link : links) link->Close();
  // Nobody else refers to them now, so they are destroyed here, off the progress thread.
}

void Session::ReapLinks() {
  std::vector<std::shared_ptr<transport::Endpoint>> idle;
  {
    MutexLock lock(mutex_);
    // A board update that began through an old link holds a reference until it has posted.
    std::erase_if(retired_, [&idle](std::shared_ptr<transport::Endpoint>& link) {
      if (link.use_count() > 1) return false;
      idle.push_back(std::move(link));
      return true;
    });
  }
  for (const auto& link : idle) link->Close();
}

ByteSpan Session::inbox() const {
  MutexLock lock(mutex_);
  LUWU_CHECK(inbox_ != nullptr, "the inbox lives as long as the link");
  return inbox_->span();
}

void Session::DropInbox() {
  MutexLock lock(mutex_);
  LUWU_CHECK(fenced_ && endpoint_ == nullptr, "the link is closed before its inbox goes");
  inbox_ = nullptr;
}

void Session::ExtendLease(Milliseconds by) {
  MutexLock lock(mutex_);
  lease_end_ += by;
}

bool Session::LeaseExpired(TimePoint now) const {
  MutexLock lock(mutex_);
  return now >= lease_end_;
}

uint64_t Session::LeaseLeftMs(TimePoint now) const {
  MutexLock lock(mutex_);
  if (now >= lease_end_) return 0;
  return static_cast<uint64_t>(std::chrono::ceil<Milliseconds>(lease_end_ - now).count());
}

TimePoint Session::ended_at(TimePoint now) const {
  MutexLock lock(mutex_);
  return end_.ok() ? now : ended_at_;
}

Session::LinkState Session::link_state() const {
  MutexLock lock(mutex_);
  return link_state_;
}

std::string Session::transport_name() const {
  MutexLock lock(mutex_);
  if (link_state_ != LinkState::kUp) return "";
  return std::string(transport::KindName(endpoint_->kind()));
}

bool Session::regions_exchanged() const {
  MutexLock lock(mutex_);
  return exchanged_;
}

bool Session::fenced() const {
  MutexLock lock(mutex_);
  return fenced_;
}

}  // namespace luwu
