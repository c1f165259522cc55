#include "common/transport/shm/shm_endpoint.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/transport/socket.h"
#include "common/transport/store_bytes.h"

namespace luwu::transport {
namespace {

constexpr size_t kImmediateBytes = sizeof(uint32_t);

}  // namespace

ShmEndpoint::ShmEndpoint(LinkParts parts, UniqueFd socket, std::vector<MappedRegion> regions)
    : Link(Kind::kShm, std::move(parts)),
      regions_(std::move(regions)),
      socket_(std::move(socket)),
      fd_(socket_.get()),
      backlog_(kBacklogMax * kImmediateBytes) {}

ShmEndpoint::~ShmEndpoint() { Close(); }

const MappedRegion* ShmEndpoint::Find(RegionId region, Access access) const {
  const auto found =
      std::find_if(regions_.begin(), regions_.end(), [&](const MappedRegion& mapped) {
        return mapped.descriptor.id == region && mapped.descriptor.access == access;
      });
  return found == regions_.end() ? nullptr : &*found;
}

std::optional<ByteSpan> ShmEndpoint::MapWritable(RegionId region) {
  const MappedRegion* mapped = Find(region, Access::kRemoteWrite);
  if (mapped == nullptr) return std::nullopt;
  return mapped->mapping.span();
}

std::optional<ConstByteSpan> ShmEndpoint::MapReadable(RegionId region) {
  const MappedRegion* mapped = Find(region, Access::kRemoteRead);
  if (mapped == nullptr) return std::nullopt;
  return mapped->mapping.span();
}

Status ShmEndpoint::Copy(std::span<const ConstByteSpan> source, const RemoteSpan& target) {
  RETURN_IF_ERROR(CheckSource(source, target.bytes()));
  RETURN_IF_ERROR(CheckRemote(target, Access::kRemoteWrite));
  std::byte* to = Find(target.region(), Access::kRemoteWrite)->mapping.data() + target.offset();
  if (target.bytes() <= sizeof(uint64_t) && source.size() > 1) {
    // A word stays one store however it was gathered.
    std::array<std::byte, sizeof(uint64_t)> word;
    size_t filled = 0;
    for (const ConstByteSpan& range : source) {
      std::copy(range.begin(), range.end(), word.begin() + filled);
      filled += range.size();
    }
    StoreBytes(to, {word.data(), filled});
    return OkStatus();
  }
  for (const ConstByteSpan& range : source) {
    StoreBytes(to, range);
    to += range.size();
  }
  return OkStatus();
}

void ShmEndpoint::Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t /*lane*/,
                        Request* request) {
  if (EnterPost(request)) FinishPost(request, Copy(source, target));
}

void ShmEndpoint::WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target,
                                  uint32_t /*lane*/, uint32_t immediate, Request* request) {
  if (!EnterPost(request)) return;
  Status status = Copy(source, target);
  if (status.ok()) status = SendImmediate(immediate);
  FinishPost(request, std::move(status));
}

void ShmEndpoint::Read(RemoteSpan source, ByteSpan target, uint32_t /*lane*/, Request* request) {
  if (!EnterPost(request)) return;
  Status status = OkStatus();
  if (target.size() != source.bytes()) {
    status = Error(ErrorCode::kInvalidArgument, "the destination has {} bytes, the source has {}",
                   target.size(), source.bytes());
  } else {
    status = CheckRemote(source, Access::kRemoteRead);
  }
  if (status.ok()) {
    const Mapping& mapping = Find(source.region(), Access::kRemoteRead)->mapping;
    LoadBytes(target.data(), mapping.span().subspan(source.offset(), source.bytes()));
  }
  FinishPost(request, std::move(status));
}

void ShmEndpoint::Notify(uint32_t /*lane*/, uint32_t immediate, Request* request) {
  if (EnterPost(request)) FinishPost(request, SendImmediate(immediate));
}

Status ShmEndpoint::SendImmediate(uint32_t immediate) {
  FenceBeforeAnnouncing();
  std::array<std::byte, kImmediateBytes> bytes;
  std::memcpy(bytes.data(), &immediate, bytes.size());
  MutexLock lock(mutex_);
  if (!socket_.valid()) return Error(ErrorCode::kUnavailable, "the link has just gone down");
  size_t sent = 0;
  if (backlog_bytes_ == 0) {
    const ssize_t count =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count == static_cast<ssize_t>(bytes.size())) return OkStatus();
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      // The progress thread sees the same and fails the link.
      return Error(ErrorCode::kUnavailable, "notifying the peer: {}", ErrnoText(errno));
    }
    sent = count > 0 ? static_cast<size_t>(count) : 0;
  }
  if (backlog_bytes_ + bytes.size() - sent > backlog_.size()) {
    Status status = Error(ErrorCode::kUnavailable, "the peer has left over {} notifications unread",
                          kBacklogMax);
    Disconnect(status);
    return status;
  }
  const bool first = backlog_bytes_ == 0;
  for (; sent < bytes.size(); ++sent, ++backlog_bytes_) {
    backlog_[(backlog_first_ + backlog_bytes_) % backlog_.size()] = bytes[sent];
  }
  return first && attached_ ? loop()->SetWritable(socket_.get(), this, true) : OkStatus();
}

Status ShmEndpoint::FlushBacklog() {
  MutexLock lock(mutex_);
  if (backlog_bytes_ == 0) return OkStatus();
  while (backlog_bytes_ > 0) {
    const size_t piece = std::min(backlog_bytes_, backlog_.size() - backlog_first_);
    const ssize_t count =
        ::send(socket_.get(), backlog_.data() + backlog_first_, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return OkStatus();
    if (count < 0) {
      return Error(ErrorCode::kUnavailable, "notifying the peer: {}", ErrnoText(errno));
    }
    backlog_first_ = (backlog_first_ + static_cast<size_t>(count)) % backlog_.size();
    backlog_bytes_ -= static_cast<size_t>(count);
  }
  // While nothing waits, the socket must not report that the peer has taken something.
  return loop()->SetWritable(socket_.get(), this, false);
}

StatusOr<bool> ShmEndpoint::ReceiveImmediates() {
  const size_t room = received_.size() - received_bytes_;
  const ssize_t count = ::recv(fd_, received_.data() + received_bytes_, room, MSG_DONTWAIT);
  if (count == 0) return Error(ErrorCode::kUnavailable, "the peer closed the link or died");
  if (count < 0) {
    if (errno == EAGAIN) return false;
    if (errno == EINTR) return true;
    return Error(ErrorCode::kUnavailable, "the peer is gone: {}", ErrnoText(errno));
  }
  FenceAfterAnnouncement();
  const size_t available = received_bytes_ + static_cast<size_t>(count);
  const size_t whole = available - available % kImmediateBytes;
  for (size_t at = 0; at < whole; at += kImmediateBytes) {
    uint32_t immediate = 0;
    std::memcpy(&immediate, received_.data() + at, sizeof immediate);
    DeliverNotify(immediate);
  }
  std::copy(received_.begin() + whole, received_.begin() + available, received_.begin());
  received_bytes_ = available - whole;
  return ended_ || static_cast<size_t>(count) == room;
}

bool ShmEndpoint::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    const Status flushed = FlushBacklog();
    if (!flushed.ok()) {
      Fail(flushed);
      return false;
    }
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ended_ = true;
  // One buffer a turn.
  const StatusOr<bool> more = ReceiveImmediates();
  if (!more.ok()) {
    Fail(more.status());
    return false;
  }
  return *more;
}

Status ShmEndpoint::Attach() {
  MutexLock lock(mutex_);
  attached_ = true;
  return loop()->Add(socket_.get(), this, backlog_bytes_ > 0);
}

void ShmEndpoint::Detach(const Status& /*result*/, RequestList* /*outstanding*/) {
  MutexLock lock(mutex_);
  loop()->Remove(socket_.get(), this);
  socket_.Reset();
  fd_ = -1;
}

}  // namespace luwu::transport
