// How a process uses RDMA: which device and port, with which settings. The daemon's come from
// [rdma] of its configuration, a trainer's from the option `rdma` of its session.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace luwu::transport {

class VerbsApi;

enum class VerbsUse : uint8_t { kAuto = 0, kOn, kOff };

struct VerbsOptions {
  VerbsUse use = VerbsUse::kAuto;  // kAuto: where a device is usable; kOn: or fail; kOff
  std::string device = {};         // "": the first that is usable
  uint32_t port = 0;               // 0: its first active one
  int32_t gid_index = -1;          // -1: RoCE v2 on an IPv4 address first
  uint32_t mtu = 0;                // bytes of payload in a packet; 0: the port's
  bool busy_poll = false;          // the progress thread polls, yielding, instead of sleeping
  bool windows = true;             // memory windows, where the device has them
  uint64_t chunk_bytes = uint64_t{1} << 30;  // largest piece registered at once
  VerbsApi* api = nullptr;                   // null: libibverbs

  bool operator==(const VerbsOptions&) const = default;
};

// What is open now, and what happened since the start; for status and leak checks.
struct VerbsCounters {
  uint64_t links = 0;
  uint64_t links_made = 0;
  uint64_t links_failed = 0;       // by an error of a queue pair, port or device
  uint64_t protection_faults = 0;  // accesses that a NIC refused
};

inline constexpr uint32_t kVerbsMtus[] = {256, 512, 1024, 2048, 4096};

// "device=mlx5_0 port=1 gid_index=3 mtu=4096 mode=busy", in any order; "" gives the default.
// kInvalidArgument names the word that is wrong.
StatusOr<VerbsOptions> ParseVerbsOptions(const std::string& text);

}  // namespace luwu::transport
