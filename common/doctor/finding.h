// What the doctor says: a named finding with its severity, and what to do about it. Every name is
// in the catalogue, which docs/operating/doctor.md repeats row by row (doctor_test compares them).
//
// Pure; any thread. Exists because luwuctl and the daemon judge by the same rules.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace luwu::doctor {

enum class Severity : uint8_t { kOk = 1, kWarn = 2, kErr = 3 };

enum class Topic : uint8_t {
  kMemlock = 0,
  kHugePages,
  kSharedHugePages,
  kClockSource,
  kOpenFiles,
  kMapCount,
  kMemoryBudget,
  kRdma,
  kConfig,
  kControlPort,
  kDataPort,
  kShmSocket,
  kDataDirectory,
  kStorageDirect,
  kStorageSpace,
  kStorageWrites,
  kNode,
  kNodeList,
  kVersion,
  kClock,
  kDataReach,
  kPeerControl,
  kPeerData,
};

struct TopicInfo {
  std::string_view name;     // "MEMLOCK"
  std::string_view worst;    // "WARN" or "ERR"
  std::string_view meaning;  // when it is not OK
  std::string_view fix;
};
// In the order of Topic.
std::span<const TopicInfo> Catalogue();
std::string_view NameOf(Topic topic);

struct Finding {
  Topic topic = Topic::kMemlock;
  Severity severity = Severity::kOk;
  std::string summary;  // what, with its names and numbers
  std::string hint;     // what to do; empty when OK
};
using Findings = std::vector<Finding>;

Finding Ok(Topic topic, std::string summary);
Finding Warn(Topic topic, std::string summary, std::string hint);
Finding Err(Topic topic, std::string summary, std::string hint);

}  // namespace luwu::doctor
