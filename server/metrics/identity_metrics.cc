// Metrics of the identities that may have jobs and sessions; none without [tls].
#include "server/metrics/metric_list.h"

namespace luwu {
namespace {

using Samples = std::vector<MetricSample>;

auto OfIdentity(uint64_t (*read)(const IdentityUse&)) {
  return [read](const DaemonSnapshot& node) {
    Samples out;
    for (const IdentityUse& use : node.identities) {
      out.push_back({.labels = {use.identity}, .value = double(read(use))});
    }
    return out;
  };
}

// Only where there is a limit, so that a ratio to it is never one to nothing.
auto LimitOf(uint64_t (*read)(const Quota&)) {
  return [read](const DaemonSnapshot& node) {
    Samples out;
    for (const IdentityUse& use : node.identities) {
      if (const uint64_t limit = read(use.quota); limit != 0) {
        out.push_back({.labels = {use.identity}, .value = double(limit)});
      }
    }
    return out;
  };
}

}  // namespace

std::vector<Metric> IdentityMetrics() {
  constexpr MetricKind kGauge = MetricKind::kGauge;
  return {
      {"luwu_identity_sessions",
       kGauge,
       {"identity"},
       "open sessions of a trainer or operator of `[[access]]`; only with `[tls]`, as all of these",
       OfIdentity([](const IdentityUse& use) { return use.sessions; })},
      {"luwu_identity_sessions_max",
       kGauge,
       {"identity"},
       "how many it may have; absent without a limit, as the other limits",
       LimitOf([](const Quota& quota) { return quota.sessions; })},
      {"luwu_identity_slots",
       kGauge,
       {"identity"},
       "gradient slots of these sessions",
       OfIdentity([](const IdentityUse& use) { return use.slots; })},
      {"luwu_identity_slots_max",
       kGauge,
       {"identity"},
       "how many they may be",
       LimitOf([](const Quota& quota) { return quota.slots; })},
      {"luwu_identity_jobs",
       kGauge,
       {"identity"},
       "jobs that it has created and that are still there",
       OfIdentity([](const IdentityUse& use) { return use.owned.jobs; })},
      {"luwu_identity_memory_bytes",
       kGauge,
       {"identity"},
       "memory of these jobs on this node",
       OfIdentity([](const IdentityUse& use) { return use.owned.memory_bytes; })},
      {"luwu_identity_memory_max_bytes",
       kGauge,
       {"identity"},
       "how much it may be",
       LimitOf([](const Quota& quota) { return quota.memory_bytes; })},
  };
}

}  // namespace luwu
