#include "common/transport/verbs/frames.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr uint64_t kContentBytesMax = uint64_t{kKeysMax} * sizeof(VerbsKey);
constexpr size_t kRefusalBytesMax = 512;

Mac FrameMac(const FrameSeal& seal, std::string_view role, ConstByteSpan head_and_content) {
  std::vector<std::byte> message;
  const auto append = [&message](ConstByteSpan bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  append(seal.acceptor_nonce);
  append(seal.dialler_nonce);
  append(std::as_bytes(std::span(role)));
  append(head_and_content);
  return HmacSha256(seal.secret, message);
}

}  // namespace

std::vector<std::byte> SealFrame(const FrameSeal& seal, std::string_view role, VerbsFrameType type,
                                 ConstByteSpan content) {
  const VerbsFrameHead head = {kVerbsFrameMagic, static_cast<uint32_t>(type),
                               static_cast<uint32_t>(content.size()), 0};
  std::vector<std::byte> frame;
  frame.reserve(sizeof head + content.size() + sizeof(Mac));
  const ConstByteSpan head_bytes = BytesOf(head);
  frame.insert(frame.end(), head_bytes.begin(), head_bytes.end());
  frame.insert(frame.end(), content.begin(), content.end());
  const Mac mac = FrameMac(seal, role, frame);
  frame.insert(frame.end(), mac.begin(), mac.end());
  return frame;
}

std::vector<std::byte> SealRefusal(const FrameSeal& seal, std::string_view role,
                                   const Status& why) {
  const std::string text = MessageOf(why).substr(0, kRefusalBytesMax);
  return SealFrame(seal, role, VerbsFrameType::kRefusal, std::as_bytes(std::span(text)));
}

ByteSpan FrameReader::Room() { return ByteSpan(bytes_).subspan(filled_); }

Status FrameReader::Advance(size_t count) {
  filled_ += count;
  if (filled_ < bytes_.size()) return OkStatus();
  if (has_head_) {
    whole_ = true;
    return OkStatus();
  }
  VerbsFrameHead head;
  std::memcpy(&head, bytes_.data(), sizeof head);
  if (head.magic != kVerbsFrameMagic || head.bytes > kContentBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "what came is no frame of an RDMA handshake");
  }
  has_head_ = true;
  bytes_.resize(sizeof head + head.bytes + sizeof(Mac));
  return OkStatus();
}

StatusOr<std::vector<std::byte>> FrameReader::Take(const FrameSeal& seal, std::string_view role,
                                                   VerbsFrameType type) {
  std::vector<std::byte> frame(sizeof(VerbsFrameHead));
  frame.swap(bytes_);
  filled_ = 0;
  has_head_ = whole_ = false;
  VerbsFrameHead head;
  std::memcpy(&head, frame.data(), sizeof head);
  Mac mac;
  std::memcpy(mac.data(), frame.data() + frame.size() - sizeof mac, sizeof mac);
  frame.resize(frame.size() - sizeof mac);
  if (!MacEqual(mac, FrameMac(seal, role, frame))) {
    return Error(ErrorCode::kPermission, "wrong MAC on a frame of the RDMA handshake");
  }
  frame.erase(frame.begin(), frame.begin() + sizeof head);
  if (head.type == static_cast<uint32_t>(VerbsFrameType::kRefusal)) {
    std::string text(frame.size(), ' ');
    std::transform(frame.begin(), frame.end(), text.begin(),
                   [](std::byte byte) { return static_cast<char>(byte); });
    return Error(ErrorCode::kUnsupported, "the peer refused: {}", Printable(std::move(text)));
  }
  if (head.type != static_cast<uint32_t>(type)) {
    return Error(ErrorCode::kInvalidArgument, "a frame of type {} came instead of {}", head.type,
                 static_cast<uint32_t>(type));
  }
  return frame;
}

}  // namespace luwu::transport
