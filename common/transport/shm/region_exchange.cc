#include "common/transport/shm/region_exchange.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kRegionsMax)];
};

// A number that is no kind of access stays none: a cast would look at its low byte only.
RegionDescriptor Describe(const RegionEntry& entry) {
  const bool known = entry.access == static_cast<uint32_t>(Access::kRemoteRead) ||
                     entry.access == static_cast<uint32_t>(Access::kRemoteWrite);
  return {entry.id, entry.bytes, known ? static_cast<Access>(entry.access) : Access{}};
}

std::string TextOf(const RegionDescriptor& region) {
  return fmt::format("region {} of {} bytes ({})", region.id, region.bytes,
                     region.access == Access::kRemoteRead    ? "read"
                     : region.access == Access::kRemoteWrite ? "write"
                                                             : "unknown access");
}

// A file system of the peer's own could block us inside fstat; only memfds answer this.
Status CheckIsMemfd(int fd, uint32_t id) {
  if (::fcntl(fd, F_GET_SEALS) >= 0) return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "region {} of the peer is not a sealable memfd", id);
}

}  // namespace

Verdict MakeVerdict(const Status& status) {
  Verdict verdict = {kVerdictMagic, static_cast<int32_t>(CodeOf(status)), {}};
  const std::string text = MessageOf(status);
  std::memcpy(verdict.text, text.data(), std::min(text.size(), sizeof verdict.text - 1));
  return verdict;
}

Status ReadVerdict(const Verdict& verdict) {
  if (verdict.magic != kVerdictMagic) {
    return Error(ErrorCode::kInvalidArgument, "the peer's verdict has a wrong magic number");
  }
  if (verdict.code == 0) return OkStatus();
  const std::string text(verdict.text, ::strnlen(verdict.text, sizeof verdict.text));
  return MakeError(static_cast<ErrorCode>(verdict.code), "the peer refused: " + Printable(text));
}

Status SendRegions(int socket, const ExposedRegions& exposed) {
  if (exposed.size() > kRegionsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} regions are exposed on one link, at most {} can",
                 exposed.size(), kRegionsMax);
  }
  RegionFrame frame = {kRegionFrameMagic, static_cast<uint32_t>(exposed.size()), {}};
  std::array<int, kRegionsMax> fds = {};
  for (size_t i = 0; i < exposed.size(); ++i) {
    const LocalRegion& region = *exposed[i].region;
    frame.entries[i] = {exposed[i].id, static_cast<uint32_t>(region.access()), region.bytes()};
    fds[i] = region.fd();
  }
  iovec piece = {&frame, sizeof frame};
  ControlBuffer control = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!exposed.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * exposed.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * exposed.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * exposed.size());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(sizeof frame)) return OkStatus();
  return Error(ErrorCode::kUnavailable, "sending region descriptors: {}",
               sent < 0 ? ErrnoText(errno) : std::string("socket buffer too small"));
}

// Takes over every descriptor of a received message, wanted or not.
Status RegionReceiver::TakeDescriptors(void* message) {
  auto* header_of = static_cast<msghdr*>(message);
  for (cmsghdr* header = CMSG_FIRSTHDR(header_of); header != nullptr;
       header = CMSG_NXTHDR(header_of, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds_.emplace_back(fd);
    }
  }
  if (fds_.size() > kRegionsMax || (header_of->msg_flags & MSG_CTRUNC) != 0) {
    return Error(ErrorCode::kInvalidArgument, "the peer sent more than {} descriptors",
                 kRegionsMax);
  }
  return OkStatus();
}

StatusOr<bool> RegionReceiver::Receive(int socket) {
  const ByteSpan bytes = WritableBytesOf(frame_);
  while (bytes_ < bytes.size()) {
    iovec piece = {bytes.data() + bytes_, bytes.size() - bytes_};
    ControlBuffer control = {};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    const ssize_t count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count < 0) {
      return Error(ErrorCode::kUnavailable, "receiving region descriptors: {}", ErrnoText(errno));
    }
    RETURN_IF_ERROR(TakeDescriptors(&message));
    if (count == 0) {
      return Error(ErrorCode::kUnavailable,
                   "the peer closed the connection before it had sent its "
                   "region descriptors");
    }
    bytes_ += static_cast<size_t>(count);
  }
  return true;
}

Status RegionReceiver::Check(const std::vector<RegionDescriptor>& expected) const {
  if (frame_.magic != kRegionFrameMagic || frame_.count > kRegionsMax) {
    return Error(ErrorCode::kInvalidArgument, "the peer's region frame is malformed");
  }
  if (fds_.size() != frame_.count) {
    return Error(ErrorCode::kInvalidArgument,
                 "the peer announced {} regions and sent {} "
                 "descriptors",
                 frame_.count, fds_.size());
  }
  std::vector<RegionDescriptor> missing = expected;
  for (const RegionEntry& entry : std::span(frame_.entries, frame_.count)) {
    const RegionDescriptor found = Describe(entry);
    const auto match = std::find(missing.begin(), missing.end(), found);
    if (match == missing.end()) {
      return Error(ErrorCode::kInvalidArgument, "the peer exposes {}, which was not agreed",
                   TextOf(found));
    }
    missing.erase(match);
  }
  if (!missing.empty()) {
    return Error(ErrorCode::kInvalidArgument, "the peer does not expose {}, which was agreed",
                 TextOf(missing.front()));
  }
  for (uint32_t i = 0; i < frame_.count; ++i) {
    RETURN_IF_ERROR(CheckIsMemfd(fds_[i].get(), frame_.entries[i].id));
  }
  return OkStatus();
}

StatusOr<std::vector<MappedRegion>> RegionReceiver::Map() const {
  std::vector<MappedRegion> regions;
  for (uint32_t i = 0; i < frame_.count; ++i) {
    const RegionDescriptor region = Describe(frame_.entries[i]);
    auto mapping =
        MapPeerMemory(fds_[i].get(), region.bytes, region.access == Access::kRemoteWrite);
    if (!mapping.ok()) return Annotate(mapping.status(), TextOf(region));
    regions.push_back({region, *std::move(mapping)});
  }
  return regions;
}

}  // namespace luwu::transport
