// What this process sees of its host: limits, kernel settings, RDMA. Facts only; host_checks.h
// judges them. Reads /proc and /sys and opens an RDMA device for a moment: some milliseconds.
// What a host does not tell (a container without /sys) stays empty or 0. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/transport/verbs/verbs_options.h"

namespace luwu::doctor {

struct RdmaFacts {
  transport::VerbsUse use = transport::VerbsUse::kAuto;
  // Described, or why there is none that can be used.
  StatusOr<std::string> device = StatusOr<std::string>();

  bool usable() const { return device.ok(); }
};

struct HostFacts {
  std::optional<uint64_t> memlock_bytes = std::nullopt;  // nullopt: unlimited
  bool may_lock_all = false;                             // CAP_IPC_LOCK: the limit does not hold
  uint64_t files_soft = 0;
  uint64_t files_hard = 0;
  std::string huge_pages = {};         // "always", "madvise", "never"
  std::string shared_huge_pages = {};  // as huge_pages; also "within_size", "advise", "deny"
  std::string clock_source = {};       // "tsc"
  uint64_t map_count_max = 0;
  uint64_t memory_bytes = 0;  // of the host, or of its cgroup when that is less
  RdmaFacts rdma = {};
};

HostFacts GatherHostFacts(const transport::VerbsOptions& rdma);

// The word in brackets of "always [madvise] never"; empty when there is none.
std::string ChosenWord(const std::string& text);

}  // namespace luwu::doctor
