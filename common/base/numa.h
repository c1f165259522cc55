// The NUMA nodes of this host and the CPUs that this process may use. A page lies on the node of
// the CPU that touches it first, so memory is placed by choosing who touches it; no permission is
// needed for that.
//
// Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace luwu {

inline constexpr char kNumaRoot[] = "/sys/devices/system/node";

// CPUs of this process (taskset, cgroup), ascending; empty when the system does not say.
std::vector<uint32_t> AllowedCpus();

struct NumaNode {
  uint32_t number = 0;
  std::vector<uint32_t> cpus;  // those of `allowed`, ascending, never empty
  bool operator==(const NumaNode&) const = default;
};
// The nodes that have memory and at least one of the `allowed` CPUs, ascending. Empty when there is
// no folder `root`: a kernel without NUMA. kInternal, with the file, when it cannot be understood.
StatusOr<std::vector<NumaNode>> ReadNumaNodes(const std::string& root,
                                              std::span<const uint32_t> allowed);

// "0-3,8" as numbers. kInvalidArgument for anything else; an empty text is an empty list.
StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text);

// For the calling thread and those that it starts from now on: the kernel's NUMA balancing leaves
// private memory alone. It would take access away from pages that lie well to see who comes (page
// faults), and move those that another node happens to look at. False when that is not permitted.
bool LeavePagesInPlace();

// The calling thread runs on `cpus` only, from now on. False when the system refuses, or for an
// empty list: it then runs where it did.
bool StayOn(std::span<const uint32_t> cpus);

// The same until the end of the scope.
class StayOnScope {
 public:
  explicit StayOnScope(std::span<const uint32_t> cpus) : former_(AllowedCpus()) { StayOn(cpus); }
  ~StayOnScope() { StayOn(former_); }
  StayOnScope(const StayOnScope&) = delete;
  StayOnScope& operator=(const StayOnScope&) = delete;

 private:
  const std::vector<uint32_t> former_;
};

}  // namespace luwu
