#include "common/doctor/host_facts.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "common/transport/verbs/device.h"

namespace luwu::doctor {
namespace {

constexpr unsigned kCapIpcLock = 14;  // linux/capability.h

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> Number(const std::string& text, int base = 10) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

rlimit LimitOf(__rlimit_resource resource) {
  rlimit limit = {};
  ::getrlimit(resource, &limit);
  return limit;
}

bool MayLockAll() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kKey = "CapEff:\t";
    if (line.starts_with(kKey)) {
      return (Number(line.substr(kKey.size()), 16).value_or(0) >> kCapIpcLock & 1) != 0;
    }
  }
  return false;
}

uint64_t MemoryBytes() {
  const auto pages = static_cast<uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
  uint64_t bytes = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::string group = FirstLine("/proc/self/cgroup");  // version 2: "0::/path"
  if (!group.starts_with("0::")) return bytes;
  group.erase(0, 3);
  // Limits of the folders above hold, too.
  while (true) {
    if (const auto limit = Number(FirstLine("/sys/fs/cgroup" + group + "/memory.max"))) {
      bytes = std::min(bytes, *limit);
    }
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return bytes;
    group.erase(slash);
  }
}

RdmaFacts GatherRdma(const transport::VerbsOptions& options) {
  const auto device = transport::VerbsDevice::Open(options);
  if (!device.ok()) return {options.use, device.status()};
  return {options.use, (*device)->Describe()};
}

}  // namespace

std::string ChosenWord(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return "";
  return text.substr(open + 1, close - open - 1);
}

HostFacts GatherHostFacts(const transport::VerbsOptions& rdma) {
  const std::string pages = "/sys/kernel/mm/transparent_hugepage/";
  HostFacts facts = {.rdma = GatherRdma(rdma)};
  const rlimit memlock = LimitOf(RLIMIT_MEMLOCK);
  if (memlock.rlim_cur != RLIM_INFINITY) facts.memlock_bytes = memlock.rlim_cur;
  facts.may_lock_all = MayLockAll();
  const rlimit files = LimitOf(RLIMIT_NOFILE);
  facts.files_soft = files.rlim_cur;
  facts.files_hard = files.rlim_max;
  facts.huge_pages = ChosenWord(FirstLine(pages + "enabled"));
  facts.shared_huge_pages = ChosenWord(FirstLine(pages + "shmem_enabled"));
  facts.clock_source =
      FirstLine("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  facts.map_count_max = Number(FirstLine("/proc/sys/vm/max_map_count")).value_or(0);
  facts.memory_bytes = MemoryBytes();
  return facts;
}

}  // namespace luwu::doctor
