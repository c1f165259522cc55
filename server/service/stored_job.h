// What a daemon remembers of a job in its data directory, as bytes: the spec, and the epoch that
// the job was created with. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"

namespace luwu {

struct StoredJob {
  JobSpec spec;
  uint64_t lineage = 0;
  uint64_t memory_bytes = 0;  // that it took
  std::string owner = {};     // the identity that has created it
};

std::string SerializeStoredJob(const StoredJob& job);
// kCorrupt; the spec has been validated.
StatusOr<StoredJob> ParseStoredJob(const std::string& bytes);

// Of what decides which shards a node has: names and weights, not the addresses, which may change.
uint64_t PlacementFingerprint(const std::vector<Node>& nodes);

}  // namespace luwu
