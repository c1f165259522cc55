#include "common/transport/verbs/verbs_endpoint.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr int kBatchesPerTurn = 4;
constexpr uint64_t kCheckMs = 500;
constexpr std::chrono::microseconds kBusyFor{100};
constexpr size_t kLastWordsMax = 256;

}  // namespace

VerbsEndpoint::VerbsEndpoint(VerbsLinkParts parts)
    : Link(Kind::kVerbs, std::move(parts.link)),
      adapter_(std::move(parts.adapter)),
      busy_poll_(adapter_->options().busy_poll),
      watcher_(this),
      staging_(std::move(parts.staging)),
      channel_(std::move(parts.channel)),
      socket_(std::move(parts.socket)) {
  MutexLock lock(mutex_);
  for (uint32_t i = 0; i < channel_->queue_pairs().size(); ++i) {
    queues_.push_back(std::make_unique<WorkQueue>(channel_.get(), staging_.get(), i));
  }
  settled_.reserve(size_t{VerbsChannel::kSends} * queues_.size());
}

VerbsEndpoint::~VerbsEndpoint() { Close(); }

// ---- posting -----------------------------------------------------------------------------------

void VerbsEndpoint::Post(const VerbsRequest& op, uint32_t lane, Request* request) {
  Status status = OkStatus();
  {
    MutexLock lock(mutex_);
    status = down_;  // then there are no queues any more
    WorkQueue* queue = status.ok() ? queues_[lane % queues_.size()].get() : nullptr;
    if (status.ok()) status = queue->Push(op, request);
    if (status.ok()) {
      // The request is in the queue now, and completes with the link if this fails.
      const Status posted = queue->Dispatch();
      if (!posted.ok()) Disconnect(posted);
    }
  }
  if (status.ok()) {
    LeavePost();
  } else {
    FinishPost(request, std::move(status));
  }
}

void VerbsEndpoint::PostWrite(const VerbsRequest& op, uint32_t lane, Request* request) {
  if (!EnterPost(request)) return;
  Status status = CheckSource(op.source, op.remote.bytes());
  if (status.ok()) status = CheckRemote(op.remote, Access::kRemoteWrite);
  if (!status.ok() || (op.remote.bytes() == 0 && !op.notify)) {
    return FinishPost(request, std::move(status));
  }
  Post(op, lane, request);
}

void VerbsEndpoint::Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                          Request* request) {
  VerbsRequest op;
  op.remote = target;
  op.source = source;
  PostWrite(op, lane, request);
}

void VerbsEndpoint::WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target,
                                    uint32_t lane, uint32_t immediate, Request* request) {
  VerbsRequest op;
  op.notify = true;
  op.immediate = immediate;
  op.remote = target;
  op.source = source;
  PostWrite(op, lane, request);
}

void VerbsEndpoint::Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) {
  if (!EnterPost(request)) return;
  Status status = OkStatus();
  if (target.size() != source.bytes()) {
    status = Error(ErrorCode::kInvalidArgument, "the destination has {} bytes, the source has {}",
                   target.size(), source.bytes());
  } else {
    status = CheckRemote(source, Access::kRemoteRead);
  }
  if (!status.ok() || target.empty()) return FinishPost(request, std::move(status));
  VerbsRequest op;
  op.op = VerbsOp::kRead;
  op.remote = source;
  op.target = target.data();
  Post(op, lane, request);
}

void VerbsEndpoint::Notify(uint32_t lane, uint32_t immediate, Request* request) {
  if (!EnterPost(request)) return;
  VerbsRequest op;
  op.notify = true;
  op.immediate = immediate;
  Post(op, lane, request);
}

// ---- progress thread ---------------------------------------------------------------------------

Status VerbsEndpoint::Attach() {
  const int fd = channel_->events()->fd;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Error(ErrorCode::kInternal, "fcntl on a completion channel: {}", ErrnoText(errno));
  }
  adapter_->AddLink(this);
  RETURN_IF_ERROR(loop()->Add(socket_.get(), this, false));
  RETURN_IF_ERROR(loop()->Add(fd, &watcher_, false));
  RETURN_IF_ERROR(Rearm());
  loop()->SetDeadline(&watcher_, DeadlineAfter(kCheckMs));
  loop()->Kick(&watcher_);  // what came before this
  return OkStatus();
}

void VerbsEndpoint::Detach(const Status& result, RequestList* outstanding) {
  adapter_->RemoveLink(this);
  loop()->Remove(channel_->events() != nullptr ? channel_->events()->fd : -1, &watcher_);
  loop()->Remove(socket_.get(), this);
  MutexLock lock(mutex_);
  down_ = result;
  channel_->Shut();
  for (const auto& queue : queues_) queue->FailAll(result, outstanding);
  if (CodeOf(result) == ErrorCode::kUnavailable) {
    const std::string words = MessageOf(result).substr(0, kLastWordsMax);
    (void)::send(socket_.get(), words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  socket_.Reset();
  queues_.clear();
  channel_->domain().GiveStaging(std::move(staging_));
}

// Nothing but the peer's last words comes here.
bool VerbsEndpoint::OnSocket(uint32_t /*events*/) {
  std::array<char, kLastWordsMax> bytes;
  const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0 && last_words_.size() < kLastWordsMax) {
    last_words_.append(bytes.data(), static_cast<size_t>(count));
    return true;
  }
  if (count < 0 && errno == EAGAIN) return false;
  if (count < 0 && errno == EINTR) return true;
  if (!last_words_.empty()) {
    Fail(Error(ErrorCode::kUnavailable, "the peer ended the link: {}", Printable(last_words_)));
  } else {
    Fail(Error(ErrorCode::kUnavailable, "the peer closed the link or died"));
  }
  return false;
}

bool VerbsEndpoint::OnCompletions(uint32_t events) {
  Status status = events != 0 ? Rearm() : OkStatus();
  int taken = 0;
  for (int i = 0; i < kBatchesPerTurn && status.ok(); ++i) {
    status = TakeBatch(&taken);
    if (taken < static_cast<int>(batch_.size()) || !connected()) break;
  }
  if (!status.ok()) {
    FailWith(status, protection_fault_);
    return false;
  }
  return connected() && KeepPolling(taken);
}

// The order matters: what completes after the arming wakes us, what completed before it is polled.
Status VerbsEndpoint::Rearm() {
  ibv_cq* cq = nullptr;
  unsigned count = 0;
  while (channel_->api()->GetCqEvent(channel_->events(), &cq) == 0) ++count;
  if (count > 0) channel_->api()->AckCqEvents(channel_->cq(), count);
  const int error = channel_->api()->ReqNotifyCq(channel_->cq());
  if (error == 0) return OkStatus();
  return Error(ErrorCode::kUnavailable, "ibv_req_notify_cq failed: {}", ErrnoText(error));
}

Status VerbsEndpoint::TakeBatch(int* taken) {
  *taken = channel_->api()->PollCq(channel_->cq(), batch_);
  if (*taken < 0) return Error(ErrorCode::kUnavailable, "ibv_poll_cq failed");
  Status status = OkStatus();
  for (int i = 0; i < *taken; ++i) {
    const ibv_wc& wc = batch_[static_cast<size_t>(i)];
    if (wc.status != IBV_WC_SUCCESS) {
      // A flush is the echo of an error that is reported elsewhere, or of the peer's end.
      const bool echo = !status.ok() || wc.status == IBV_WC_WR_FLUSH_ERR;
      if (!echo || status.ok()) {
        status = Error(ErrorCode::kUnavailable, "RDMA: {}", CompletionText(wc.status));
      }
      protection_fault_ = protection_fault_ || wc.status == IBV_WC_REM_ACCESS_ERR ||
                          wc.status == IBV_WC_LOC_ACCESS_ERR;
    } else if ((wc.opcode & IBV_WC_RECV) != 0) {
      const Status received = TakeReceive(wc);
      if (status.ok()) status = received;
    } else {
      MutexLock lock(mutex_);
      queues_[wc.wr_id & 0xff]->Settle(wc.wr_id >> 8, &settled_);
    }
  }
  FinishSettled();
  return status;
}

Status VerbsEndpoint::TakeReceive(const ibv_wc& wc) {
  if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    protection_fault_ = true;
    return Error(ErrorCode::kInvalidArgument, "the peer sent a message, which no link has");
  }
  channel_->PostReceive(channel_->shares_receives() ? 0 : static_cast<uint32_t>(wc.wr_id));
  DeliverNotify(be32toh(wc.imm_data));
  return OkStatus();
}

// Copies run without the lock: only this thread ends the link, so the memory stays.
void VerbsEndpoint::FinishSettled() {
  if (settled_.empty()) return;
  for (const WorkQueue::Settled& settled : settled_) {
    if (settled.copy_to != nullptr) {
      std::memcpy(settled.copy_to, settled.staged.data, settled.bytes);
    }
  }
  RequestList done;
  Status status = OkStatus();
  {
    MutexLock lock(mutex_);
    for (const WorkQueue::Settled& settled : settled_) settled.queue->Finish(settled, &done);
    // In turn, because they compete for staging memory.
    for (size_t i = 0; i < queues_.size() && status.ok(); ++i) {
      status = queues_[(next_queue_ + i) % queues_.size()]->Dispatch();
    }
    ++next_queue_;
  }
  settled_.clear();
  if (!status.ok()) Disconnect(status);
  DeliverCompletions(&done);
}

bool VerbsEndpoint::KeepPolling(int taken) {
  if (taken == static_cast<int>(batch_.size())) return true;
  if (!busy_poll_) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (taken > 0) busy_until_ = now + kBusyFor;
  bool outstanding = false;
  {
    MutexLock lock(mutex_);
    for (const auto& queue : queues_) outstanding = outstanding || !queue->idle();
  }
  if (!outstanding && now >= busy_until_) return false;
  ::sched_yield();
  return true;
}

// A NIC may refuse an access of the peer without telling us but by the state of the queue pair.
void VerbsEndpoint::CheckQueuePairs() {
  for (const QpHandle& qp : channel_->queue_pairs()) {
    ibv_qp_attr attr = {};
    const int error = channel_->api()->QueryQp(qp.get(), &attr, IBV_QP_STATE);
    if (error == 0 && attr.qp_state == IBV_QPS_RTS) continue;
    return FailWith(Error(ErrorCode::kUnavailable,
                          "RDMA: a queue pair is in error: its NIC refused an access of the peer, "
                          "or lost the peer"),
                    true);
  }
  loop()->SetDeadline(&watcher_, DeadlineAfter(kCheckMs));
}

bool VerbsEndpoint::Owns(const ibv_qp* qp) const {
  for (const QpHandle& own : channel_->queue_pairs()) {
    if (own.get() == qp) return true;
  }
  return false;
}

void VerbsEndpoint::OnDeviceEvent(const Status& why, bool protection_fault) {
  FailWith(why, protection_fault);
}

void VerbsEndpoint::FailWith(const Status& why, bool protection_fault) {
  adapter_->CountFailure(protection_fault);
  Fail(why);
}

}  // namespace luwu::transport
