// How the two ends of a shm link show each other their memory, after the MACs: each sends one
// fixed-size frame with its descriptors and the memfds as SCM_RIGHTS; then the acceptor sends a
// verdict, so that a refusal reaches the dialler with its reason.
//
// Any thread. Everything received is hostile: counts, sizes and the descriptors themselves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/region.h"
#include "common/transport/shm/shm_endpoint.h"

namespace luwu::transport {

inline constexpr uint32_t kRegionsMax = 16;
inline constexpr uint32_t kRegionFrameMagic = 0x5252574c;  // "LWRR"
inline constexpr uint32_t kVerdictMagic = 0x5652574c;      // "LWRV"

struct RegionEntry {
  uint32_t id;
  uint32_t access;
  uint64_t bytes;
};
struct RegionFrame {
  uint32_t magic;
  uint32_t count;
  RegionEntry entries[kRegionsMax];
};
static_assert(sizeof(RegionFrame) == 264);

struct Verdict {
  uint32_t magic;
  int32_t code;  // an ErrorCode; 0: the link is up
  char text[248];
};
static_assert(sizeof(Verdict) == 256);

Verdict MakeVerdict(const Status& status);
// What the acceptor said; kInvalidArgument when it is no verdict at all.
Status ReadVerdict(const Verdict& verdict);

// On a fresh connection, whose socket buffer holds a frame.
Status SendRegions(int socket, const ExposedRegions& exposed);

// Receives the peer's frame piece by piece from a non-blocking socket.
class RegionReceiver {
 public:
  // True when the frame is complete; false when the socket has no more bytes for now.
  StatusOr<bool> Receive(int socket);
  // Compares with `expected` (any order) and maps. Before this nothing of the peer is touched.
  Status Check(const std::vector<RegionDescriptor>& expected) const;
  StatusOr<std::vector<MappedRegion>> Map() const;

 private:
  Status TakeDescriptors(void* message);

  RegionFrame frame_ = {};
  size_t bytes_ = 0;
  std::vector<UniqueFd> fds_;  // in the order of the entries
};

}  // namespace luwu::transport
