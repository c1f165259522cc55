#include "common/base/numa.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace luwu {
namespace {

StatusOr<std::vector<uint32_t>> ReadList(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text) && !file.eof()) {
    return Error(ErrorCode::kInternal, "cannot read {}", path);
  }
  StatusOr<std::vector<uint32_t>> list = ParseCpuList(text);
  if (!list.ok()) return Error(ErrorCode::kInternal, "{}: {}", path, MessageOf(list.status()));
  return list;
}

}  // namespace

std::vector<uint32_t> AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<uint32_t> cpus;
  if (::pthread_getaffinity_np(::pthread_self(), sizeof(set), &set) != 0) return cpus;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text) {
  const auto bad = [&] {
    return Error(ErrorCode::kInvalidArgument, "\"{}\" is not a list of numbers like 0-3,8", text);
  };
  std::vector<uint32_t> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](uint32_t* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next;
    return error == std::errc();
  };
  while (at != end) {
    uint32_t first = 0;
    if (!number(&first)) return bad();
    uint32_t last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!number(&last)) return bad();
    }
    if (last < first || last >= CPU_SETSIZE) return bad();
    for (uint32_t value = first; value <= last; ++value) list.push_back(value);
    if (at == end) break;
    if (*at++ != ',' || at == end) return bad();
  }
  return list;
}

StatusOr<std::vector<NumaNode>> ReadNumaNodes(const std::string& root,
                                              std::span<const uint32_t> allowed) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  if (!std::filesystem::exists(root, error)) return nodes;
  ASSIGN_OR_RETURN(std::vector<uint32_t> numbers, ReadList(root + "/has_memory"));
  std::sort(numbers.begin(), numbers.end());
  for (const uint32_t number : numbers) {
    ASSIGN_OR_RETURN(std::vector<uint32_t> cpus,
                     ReadList(root + "/node" + std::to_string(number) + "/cpulist"));
    std::sort(cpus.begin(), cpus.end());
    NumaNode node = {number, {}};
    std::set_intersection(cpus.begin(), cpus.end(), allowed.begin(), allowed.end(),
                          std::back_inserter(node.cpus));
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

// The same placement as without a policy, on the node of who touches first; but only memory without
// a policy of its own is balanced.
bool LeavePagesInPlace() { return ::syscall(SYS_set_mempolicy, MPOL_LOCAL, nullptr, 0UL) == 0; }

bool StayOn(std::span<const uint32_t> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t cpu : cpus) CPU_SET(cpu, &set);
  return !cpus.empty() && ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set) == 0;
}

}  // namespace luwu
