#include "common/transport/tcp/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

// Up to this a posting thread sends itself, while others who post to the connection wait for it.
constexpr uint64_t kInlineBytesMax = 64 * kKiB;
constexpr uint64_t kBatchBytes = 1 * kMiB;
// After this the other sockets of the loop get their turn.
constexpr uint64_t kSendPerTurnBytes = 1 * kMiB;

}  // namespace

Status TcpConnection::Post(const PostedOp& op, Request* request) {
  MutexLock lock(mutex_);
  if (!down_.ok()) return down_;
  RETURN_IF_ERROR(queue_.Push(op, request));
  // Somebody is sending and will find what was queued, or the socket is full and will report room.
  if (loop_sending_ || blocked_ || !batch_.empty()) return OkStatus();
  const bool small = op.op == Op::kRead || op.remote.bytes() <= kInlineBytesMax;
  if (!small || !SendInline()) loop_->Kick(this);
  return OkStatus();
}

uint64_t TcpConnection::served_bytes() const {
  MutexLock lock(mutex_);
  return queue_.replied();
}

// False when the progress thread must go on.
bool TcpConnection::SendInline() {
  if (!queue_.Fill(&batch_, kInlineBytesMax)) return true;
  bool all = false;
  const ssize_t count = batch_.Send(socket_.get(), &all);
  if (!Advance(count, all)) return true;
  return batch_.empty() && !queue_.HasWork();
}

bool TcpConnection::Advance(ssize_t count, bool all) {
  if (count > 0) queue_.OnSent(static_cast<uint64_t>(count));
  // After a short count the kernel reports room when there is some. Errors are reported too, and
  // handled where the last words of the peer can be read.
  blocked_ = !all && !(count < 0 && errno == EINTR);
  return !blocked_;
}

Status TcpConnection::Flush(bool* more) {
  *more = false;
  uint64_t budget = kSendPerTurnBytes;
  mutex_.Lock();
  if (!down_.ok() || blocked_) {
    mutex_.Unlock();
    return OkStatus();
  }
  loop_sending_ = true;
  int error = 0;
  while (!batch_.empty() || queue_.Fill(&batch_, kBatchBytes)) {
    if (budget == 0) {
      *more = true;
      break;
    }
    mutex_.Unlock();
    bool all = false;
    const ssize_t count = batch_.Send(socket_.get(), &all);
    error = count < 0 ? errno : 0;
    mutex_.Lock();
    errno = error;
    budget -= std::min(budget, static_cast<uint64_t>(std::max<ssize_t>(count, 0)));
    if (!Advance(count, all)) break;
  }
  loop_sending_ = false;
  mutex_.Unlock();
  if (error == 0 || error == EAGAIN || error == EINTR) return OkStatus();
  return Error(ErrorCode::kUnavailable, "the peer is gone: {}", ErrnoText(error));
}

void TcpConnection::SendFarewell(const Status& why) {
  MutexLock lock(mutex_);
  if (!down_.ok() || blocked_ || !batch_.empty()) return;  // not at the start of a frame
  const std::string text = MessageOf(why).substr(0, kErrorTextMax);
  FrameHeader* header = batch_.AddHeader();
  *header = {};
  header->magic = kFrameMagic;
  header->op = static_cast<uint8_t>(Op::kError);
  header->bytes = text.size();
  batch_.AddBytes(std::as_bytes(std::span(text)));
  bool all = false;
  (void)batch_.Send(socket_.get(), &all);  // as far as it goes; the link ends either way
  batch_.Clear();
  farewell_ = true;
}

void TcpConnection::Detach(const Status& result, RequestList* outstanding) {
  MutexLock lock(mutex_);
  loop_->Remove(socket_.get(), this);
  down_ = result;
  if (!farewell_ && !queue_.Idle()) {
    // Requests complete now, so bytes that are still in the socket must not go out later.
    const linger drop = {1, 0};
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
  }
  queue_.FailAll(result, outstanding);
  batch_.Clear();
  socket_.Reset();
}

bool TcpConnection::OnReady(uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ended_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
    MutexLock lock(mutex_);
    blocked_ = false;
  }
  Status status = readable_ ? Receive() : OkStatus();
  bool more = false;
  if (status.ok()) {
    status = Flush(&more);
    if (!status.ok() && !ended_) {
      // The socket takes nothing any more: what the peer said last comes first.
      readable_ = ended_ = true;
      return true;
    }
  }
  if (!status.ok()) {
    if (CodeOf(status) != ErrorCode::kUnavailable) SendFarewell(status);
    owner_->OnBroken(status);
    return false;
  }
  return readable_ || more;
}

}  // namespace luwu::transport
