// What the two ends of a verbs link tell each other on the authenticated connection, after its
// MACs: how to reach their queue pairs, then the keys of what they expose. Both are secrets of the
// session, so each frame carries a MAC of its own over the handshake's nonces, the sender's role
// and its content.
//
//   dialler  -> acceptor  kOffer     its queue pairs
//   acceptor -> dialler   kOffer     its own
//   dialler  -> acceptor  kKeys      its queue pairs are connected; keys of its regions
//   acceptor -> dialler   kKeys      the same; from now on the dialler may move data
//   either                kRefusal   instead of any of these: why there is no link
//
// After that the connection carries nothing; its end is the end of the link. Little-endian.
// Everything received is hostile until checked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/transport/connect.h"
#include "common/transport/handshake.h"
#include "common/transport/region.h"

namespace luwu::transport {

inline constexpr uint32_t kVerbsFrameMagic = 0x4656574c;  // "LWVF"
inline constexpr uint32_t kKeysMax = 2048;

enum class VerbsFrameType : uint32_t { kOffer = 1, kKeys = 2, kRefusal = 3 };

struct VerbsFrameHead {
  uint32_t magic;
  uint32_t type;
  uint32_t bytes;  // of the content that follows; then comes the MAC
  uint32_t reserved;
};
static_assert(sizeof(VerbsFrameHead) == 16);

struct QueuePairAddress {
  uint32_t number;
  uint32_t first_psn;
};

struct VerbsOffer {
  uint32_t ethernet;
  uint32_t lid;
  uint8_t gid[16];
  uint32_t mtu_bytes;
  uint32_t reads_max;  // that this end can answer at once on one queue pair
  uint32_t queue_pairs;
  uint32_t reserved;
  QueuePairAddress queue_pair[kQueuePairsMax];
};
static_assert(sizeof(VerbsOffer) == 104);

// Access to one chunk of one region through one queue pair.
struct VerbsKey {
  uint32_t region;
  uint32_t chunk;
  uint32_t queue_pair;
  uint32_t rkey;
  uint64_t address;
  uint64_t bytes;
};
static_assert(sizeof(VerbsKey) == 32);

// What both ends know after the handshake, and whose frame it is.
struct FrameSeal {
  Secret secret = {};
  Nonce acceptor_nonce = {};
  Nonce dialler_nonce = {};
};

std::vector<std::byte> SealFrame(const FrameSeal& seal, std::string_view role, VerbsFrameType type,
                                 ConstByteSpan content);
std::vector<std::byte> SealRefusal(const FrameSeal& seal, std::string_view role, const Status& why);

// Takes a frame of the peer in pieces of any size.
class FrameReader {
 public:
  // What may be received next; empty once the frame is whole.
  ByteSpan Room();
  // `count` bytes of Room() have been filled. Fails on a head that cannot be.
  Status Advance(size_t count);
  bool whole() const { return whole_; }
  // The content of a frame of `type`, after its MAC; the peer's reason when it refused. Begins
  // anew.
  StatusOr<std::vector<std::byte>> Take(const FrameSeal& seal, std::string_view role,
                                        VerbsFrameType type);

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(sizeof(VerbsFrameHead));
  size_t filled_ = 0;
  bool has_head_ = false;
  bool whole_ = false;
};

}  // namespace luwu::transport
