// The receiving half of TcpConnection.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "common/transport/socket.h"
#include "common/transport/store_bytes.h"
#include "common/transport/tcp/connection.h"

namespace luwu::transport {
namespace {

// After this the other sockets of the loop get their turn.
constexpr uint64_t kReceivePerTurnBytes = 1 * kMiB;

// While at least this much of a payload is missing, less is not worth waking up for.
constexpr int kWakeBytes = 128 * 1024;

Status Violation(const FrameHeader& header, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               "protocol violation of the peer (op {}, region {}, "
               "offset {}, bytes {}, id {}): {}",
               header.op, header.region, header.offset, header.bytes, header.id, what);
}

}  // namespace

Status TcpConnection::Receive() {
  uint64_t received = 0;
  Status status = OkStatus();
  while (readable_ && received < kReceivePerTurnBytes && status.ok()) {
    const StatusOr<uint64_t> count = ReceiveOnce();
    if (count.ok()) {
      received += *count;
    } else {
      status = count.status();
    }
  }
  if (status.ok()) SetWakeThreshold();
  if (ack_id_ != 0) {
    MutexLock lock(mutex_);
    queue_.PushAck(std::exchange(ack_id_, 0));
  }
  return status;
}

void TcpConnection::SetWakeThreshold() {
  const int wanted = in_payload_ && inbound_.left >= kWakeBytes ? kWakeBytes : 1;
  if (wanted == wake_threshold_) return;
  wake_threshold_ = wanted;
  // Raising and lowering it reports again what already satisfies it. It is only an economy.
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

// One recvmsg and what it brought: first the rest of the payload in progress, then frames.
StatusOr<uint64_t> TcpConnection::ReceiveOnce() {
  std::array<iovec, 2> pieces;
  size_t used = 0;
  if (in_payload_) pieces[used++] = {inbound_.to, inbound_.left};
  // After a long payload only the next header is taken, for what follows is likely to be long too
  // and then goes to its place without a detour.
  const uint64_t room = in_payload_ ? sizeof(FrameHeader) : buffer_.size() - buffered_;
  pieces[used++] = {buffer_.data() + buffered_, room};
  const uint64_t direct_max = in_payload_ ? inbound_.left : 0;
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = used;
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (count < 0) {
    if (errno == EINTR) return 0;
    if (errno == EAGAIN) {
      readable_ = false;
      return 0;
    }
    return Error(ErrorCode::kUnavailable, "the peer is gone: {}", ErrnoText(errno));
  }
  if (count == 0) return Error(ErrorCode::kUnavailable, "the peer closed the link or died");
  const auto received = static_cast<uint64_t>(count);
  // Fewer bytes than there was room for: the socket is empty and will report the next ones.
  if (received < direct_max + room && !ended_) readable_ = false;
  const uint64_t direct = std::min(received, direct_max);
  if (in_payload_) {
    inbound_.to += direct;
    inbound_.left -= direct;
    if (inbound_.left == 0) {
      in_payload_ = false;
      RETURN_IF_ERROR(Finish(inbound_, {}));
    }
  }
  buffered_ += received - direct;
  RETURN_IF_ERROR(ParseBuffer());
  return received;
}

Status TcpConnection::ParseBuffer() {
  size_t at = 0;
  while (!in_payload_ && buffered_ - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + at, sizeof header);
    ASSIGN_OR_RETURN(Inbound checked, Check(header));
    const uint64_t available = buffered_ - at - sizeof header;
    if (checked.whole && available < checked.left) break;
    const std::byte* payload = buffer_.data() + at + sizeof header;
    const uint64_t take = std::min(available, checked.left);
    at += sizeof header + take;
    if (checked.whole) {
      RETURN_IF_ERROR(Finish(checked, {payload, take}));
      continue;
    }
    if (take > 0) std::memcpy(checked.to, payload, take);
    checked.to += take;
    checked.left -= take;
    if (checked.left == 0) {
      RETURN_IF_ERROR(Finish(checked, {}));
    } else {
      inbound_ = checked;
      in_payload_ = true;
    }
  }
  std::memmove(buffer_.data(), buffer_.data() + at, buffered_ - at);
  buffered_ -= at;
  return OkStatus();
}

StatusOr<TcpConnection::Inbound> TcpConnection::Check(const FrameHeader& header) {
  if (header.magic != kFrameMagic) return Violation(header, "wrong magic number");
  if (header.reserved != 0) return Violation(header, "reserved bits are set");
  switch (static_cast<Op>(header.op)) {
    case Op::kRead:
      return CheckRead(header);
    case Op::kReadReply:
      return CheckReply(header);
    case Op::kWrite:
      return CheckWrite(header);
    case Op::kNotify:
      if (header.bytes != 0 || header.id != write_id_) return Violation(header, "bad notify");
      return Inbound{header, nullptr, 0, true};
    case Op::kAck:
      if (header.bytes != 0) return Violation(header, "an acknowledgement has no payload");
      return Inbound{header, nullptr, 0, true};
    case Op::kError:
      if (header.bytes > kErrorTextMax) return Violation(header, "the error text is too long");
      return Inbound{header, nullptr, header.bytes, true};
  }
  return Violation(header, "unknown operation");
}

// Region, right and bounds of what the peer wants to reach.
Status TcpConnection::CheckTarget(const FrameHeader& header, Access access, std::byte** at) const {
  const LocalRegion* region = owner_->FindExposed(header.region);
  if (region == nullptr) return Violation(header, "no such region is exposed");
  if (region->access() != access) {
    return Violation(header, access == Access::kRemoteRead ? "the region may not be read"
                                                           : "the region may not be written");
  }
  if (!RangeFits(header.offset, header.bytes, region->bytes())) {
    return Violation(header, fmt::format("the range lies outside the region, which has {} bytes",
                                         region->bytes()));
  }
  *at = region->span().data() + header.offset;
  return OkStatus();
}

StatusOr<TcpConnection::Inbound> TcpConnection::CheckWrite(const FrameHeader& header) {
  Inbound inbound = {header, nullptr, header.bytes, false};
  if (header.bytes > kPieceBytesMax) return Violation(header, "the piece is too long");
  if (header.id != write_id_) return Violation(header, "the write is out of sequence");
  RETURN_IF_ERROR(CheckTarget(header, Access::kRemoteWrite, &inbound.to));
  inbound.whole = header.bytes <= kWordwiseBytesMax;
  return inbound;
}

StatusOr<TcpConnection::Inbound> TcpConnection::CheckRead(const FrameHeader& header) {
  Inbound inbound = {header, nullptr, 0, true};
  if (header.id != read_id_) return Violation(header, "the read is out of sequence");
  RETURN_IF_ERROR(CheckTarget(header, Access::kRemoteRead, &inbound.to));
  return inbound;
}

StatusOr<TcpConnection::Inbound> TcpConnection::CheckReply(const FrameHeader& header) {
  MutexLock lock(mutex_);
  const PostedItem* item = queue_.AwaitedRead();
  if (item == nullptr || item->id != header.id) {
    return Violation(header, "a reply to a read that is not outstanding");
  }
  const bool last = (header.flags & kFlagLast) != 0;
  if (header.offset != item->progressed || header.bytes > kPieceBytesMax ||
      header.bytes > item->remote.bytes() - item->progressed ||
      last != (item->progressed + header.bytes == item->remote.bytes())) {
    return Violation(header, "the reply does not fit its read");
  }
  return Inbound{header, item->target + item->progressed, header.bytes, false};
}

// The payload is in place, or complete in `whole`.
Status TcpConnection::Finish(const Inbound& inbound, ConstByteSpan whole) {
  const FrameHeader& header = inbound.header;
  switch (static_cast<Op>(header.op)) {
    case Op::kWrite:
      if (!whole.empty()) StoreBytes(inbound.to, whole);
      if ((header.flags & kFlagLast) == 0) return OkStatus();
      ack_id_ = write_id_++;
      if ((header.flags & kFlagNotify) != 0) owner_->OnNotify(header.immediate);
      return OkStatus();
    case Op::kNotify:
      ack_id_ = write_id_++;
      owner_->OnNotify(header.immediate);
      return OkStatus();
    case Op::kRead: {
      ++read_id_;
      MutexLock lock(mutex_);
      return queue_.PushReply({inbound.to, header.bytes}, header.id);
    }
    case Op::kReadReply:
      return FinishReply(header);
    case Op::kAck: {
      RequestList done;
      Status status = OkStatus();
      {
        MutexLock lock(mutex_);
        status = queue_.OnAck(header.id, &done);
      }
      owner_->OnDone(&done);
      return status;
    }
    case Op::kError:
      break;
  }
  std::string text(whole.size(), ' ');
  if (!whole.empty()) std::memcpy(text.data(), whole.data(), whole.size());
  return Error(ErrorCode::kUnavailable, "the peer ended the link: {}", Printable(text));
}

Status TcpConnection::FinishReply(const FrameHeader& header) {
  RequestList done;
  {
    MutexLock lock(mutex_);
    queue_.AwaitedRead()->progressed += header.bytes;
    if ((header.flags & kFlagLast) == 0) return OkStatus();
    queue_.FinishAwaitedRead(&done);
  }
  owner_->OnDone(&done);
  return OkStatus();
}

}  // namespace luwu::transport
