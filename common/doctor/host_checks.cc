#include "common/doctor/host_checks.h"

#include <algorithm>
#include <array>

#include "common/base/bytes.h"

namespace luwu::doctor {
namespace {

using transport::VerbsUse;

constexpr uint64_t kMapCountUsual = 65530;

Finding CheckMemlock(const HostFacts& facts, const HostNeeds& needs) {
  constexpr Topic kTopic = Topic::kMemlock;
  if (facts.rdma.use == VerbsUse::kOff) return Ok(kTopic, "not needed: RDMA is switched off");
  if (!facts.memlock_bytes) return Ok(kTopic, "unlimited");
  const uint64_t need = std::max(needs.budget_bytes, kTrainerPinnedBytes);
  const std::string limit = HumanBytes(*facts.memlock_bytes);
  if (facts.may_lock_all) return Ok(kTopic, "limit " + limit + " does not hold (CAP_IPC_LOCK)");
  if (*facts.memlock_bytes >= need) {
    return Ok(kTopic, fmt::format("limit {}, needed {}", limit, HumanBytes(need)));
  }
  const std::string summary =
      fmt::format("{} can be locked; RDMA registers up to {}", limit, HumanBytes(need));
  if (facts.rdma.usable() || facts.rdma.use == VerbsUse::kOn) {
    return Err(kTopic, summary,
               needs.daemon
                   ? "LimitMEMLOCK=infinity in the unit of luwud (systemd ignores limits.conf); in "
                     "containers --ulimit memlock=-1; by hand ulimit -l unlimited"
                   : "ulimit -l unlimited; in Slurm PropagateResourceLimitsExcept=MEMLOCK; in "
                     "containers --ulimit memlock=-1");
  }
  if (!needs.daemon) return Ok(kTopic, summary + ", but this host has no RDMA");
  return Warn(kTopic, summary + "; there is no usable device now",
              "LimitMEMLOCK=infinity in the unit of luwud; or rdma.use = \"off\" where there is no "
              "RDMA");
}

Finding CheckHugePages(const HostFacts& facts) {
  constexpr Topic kTopic = Topic::kHugePages;
  if (facts.huge_pages == "always" || facts.huge_pages == "madvise") {
    return Ok(kTopic, facts.huge_pages);
  }
  return Warn(kTopic,
              facts.huge_pages.empty() ? "this kernel tells of none"
                                       : "switched off (" + facts.huge_pages + ")",
              "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

Finding CheckSharedHugePages(const HostFacts& facts) {
  constexpr Topic kTopic = Topic::kSharedHugePages;
  const std::string& setting = facts.shared_huge_pages;
  if (!setting.empty() && setting != "never" && setting != "deny") return Ok(kTopic, setting);
  return Warn(kTopic,
              setting.empty() ? "this kernel tells of none" : "switched off (" + setting + ")",
              "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

Finding CheckClockSource(const HostFacts& facts) {
  constexpr Topic kTopic = Topic::kClockSource;
  static constexpr std::array<std::string_view, 4> kSlow = {"jiffies", "acpi_pm", "hpet",
                                                            "refined-jiffies"};
  if (std::find(kSlow.begin(), kSlow.end(), facts.clock_source) == kSlow.end()) {
    return Ok(kTopic, facts.clock_source.empty() ? "not told here" : facts.clock_source);
  }
  return Warn(kTopic, facts.clock_source + " is slow to read",
              "look for 'clocksource' in dmesg; where tsc is in available_clocksource, write it to "
              "/sys/devices/system/clocksource/clocksource0/current_clocksource");
}

Finding CheckOpenFiles(const HostFacts& facts, const HostNeeds& needs) {
  constexpr Topic kTopic = Topic::kOpenFiles;
  const uint64_t limit = needs.daemon ? facts.files_hard : facts.files_soft;
  const uint64_t least = needs.daemon ? 1024 : 256;
  const std::string summary = fmt::format("at most {} open files", limit);
  const std::string hint = needs.daemon
                               ? "LimitNOFILE=65536 in the unit of luwud; by hand ulimit -Hn 65536"
                               : "ulimit -n 65536";
  if (limit < least) return Err(kTopic, summary, hint);
  if (limit < 4 * least) return Warn(kTopic, summary, hint);
  return Ok(kTopic, summary);
}

Finding CheckMapCount(const HostFacts& facts) {
  constexpr Topic kTopic = Topic::kMapCount;
  if (facts.map_count_max == 0) return Ok(kTopic, "not told here");
  const std::string summary = fmt::format("vm.max_map_count is {}", facts.map_count_max);
  if (facts.map_count_max >= kMapCountUsual) return Ok(kTopic, summary);
  return Warn(kTopic, summary, fmt::format("sysctl vm.max_map_count={}", kMapCountUsual));
}

Finding CheckBudget(const HostFacts& facts, const HostNeeds& needs) {
  constexpr Topic kTopic = Topic::kMemoryBudget;
  const std::string summary = fmt::format("budget {}, memory {}", HumanBytes(needs.budget_bytes),
                                          HumanBytes(facts.memory_bytes));
  const std::string hint =
      "lower memory.budget, or give the host (or its container) more; other programs need some, "
      "too";
  if (needs.budget_bytes > facts.memory_bytes) return Err(kTopic, summary, hint);
  if (needs.budget_bytes > facts.memory_bytes / 20 * 19) return Warn(kTopic, summary, hint);
  return Ok(kTopic, summary);
}

Finding CheckRdma(const RdmaFacts& facts) {
  constexpr Topic kTopic = Topic::kRdma;
  if (facts.use == VerbsUse::kOff) return Ok(kTopic, "switched off");
  if (facts.device.ok()) return Ok(kTopic, *facts.device);
  const std::string why = MessageOf(facts.device.status());
  if (facts.use == VerbsUse::kOn) {
    return Err(kTopic, why, "see docs/operating/rdma.md; or rdma.use = \"auto\" to go on by tcp");
  }
  if (CodeOf(facts.device.status()) == ErrorCode::kUnsupported) {
    return Ok(kTopic, "not used: " + why);
  }
  return Warn(kTopic, why, "see docs/operating/rdma.md; until then tcp is used");
}

}  // namespace

Findings CheckHost(const HostFacts& facts, const HostNeeds& needs) {
  Findings findings = {CheckMemlock(facts, needs),   CheckHugePages(facts),
                       CheckSharedHugePages(facts),  CheckClockSource(facts),
                       CheckOpenFiles(facts, needs), CheckMapCount(facts)};
  if (needs.budget_bytes > 0 && facts.memory_bytes > 0) {
    findings.push_back(CheckBudget(facts, needs));
  }
  findings.push_back(CheckRdma(facts.rdma));
  return findings;
}

}  // namespace luwu::doctor
