// Memory by owner: who creates a job pays for all of it on this node, until it is deleted.
#include <algorithm>

#include "common/base/bytes.h"
#include "server/service/job_registry.h"
#include "server/service/quota_book.h"

namespace luwu {
namespace {

Status TooMuch(const WantedJob& wanted, const std::string& node, uint64_t needed, uint64_t held) {
  const Owner& owner = wanted.owner;
  return QuotaError(owner, "memory_max", node,
                    fmt::format("job '{}' needs {} of memory on node {}, and {} has {} of {} in "
                                "other jobs there; delete one, or make this one smaller",
                                wanted.spec.name, HumanBytes(needed), node, owner.identity,
                                HumanBytes(held), HumanBytes(owner.quota.memory_bytes)));
}

}  // namespace

uint64_t JobRegistry::MemoryOf(const std::string& identity) const {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : entries_) {
    if (entry.owner == identity) bytes += entry.memory_bytes_max;
  }
  return bytes;
}

StatusOr<uint64_t> JobRegistry::GrantMemory(const WantedJob& wanted) {
  const uint64_t limit = wanted.owner.quota.memory_bytes;
  if (limit == 0) return uint64_t{0};
  uint64_t held = 0;
  {
    MutexLock lock(mutex_);
    if (entries_.contains(wanted.spec.name)) return uint64_t{0};
    held = MemoryOf(wanted.owner.identity);
  }
  const uint64_t left = limit - std::min(limit, held);
  const Job::Needs needs =
      Job::NeedsOf(wanted.spec, options_.nodes, options_.self, environment_,
                   {.memory_bytes_max = std::max<uint64_t>(left, 1), .has_storage = has_storage()});
  const uint64_t needed = needs.memory_bytes == 0 ? needs.memory_bytes_least : needs.memory_bytes;
  if (needed > left) return TooMuch(wanted, node_name(), needed, held);
  // The node has too little now. Should it have more in a moment: not more than is left.
  return needs.memory_bytes == 0 ? left : needs.memory_bytes;
}

// What was granted without the lock, with it.
Status JobRegistry::CheckGrant(const WantedJob& wanted, uint64_t memory_bytes) const {
  const uint64_t limit = wanted.owner.quota.memory_bytes;
  if (limit == 0) return OkStatus();
  if (memory_bytes == 0) {
    return Error(ErrorCode::kUnavailable, "job {} was deleted on node {} just now; try again",
                 wanted.spec.name, node_name());
  }
  const uint64_t held = MemoryOf(wanted.owner.identity);
  if (held + memory_bytes <= limit) return OkStatus();
  return TooMuch(wanted, node_name(), memory_bytes, held);
}

std::map<std::string, OwnedJobs> JobRegistry::JobsByOwner() const {
  MutexLock lock(mutex_);
  std::map<std::string, OwnedJobs> owned;
  for (const auto& [name, entry] : entries_) {
    OwnedJobs& of_owner = owned[entry.owner];
    ++of_owner.jobs;
    of_owner.memory_bytes += entry.memory_bytes_max;
  }
  return owned;
}

}  // namespace luwu
