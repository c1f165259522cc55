// What the update threads compute for one shard: fold contributions into a running sum, update
// state and served copy in one pass, carry a version over unchanged. Works on memory that its
// caller has set apart for the call; knows nothing of sessions, slots and locks.
//
// A shard is worked on in blocks that stay in the cache, so that the served copy is checksummed
// while it is hot.
//
// Threads: any; calls for one shard are made by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/optim/optimizer.h"
#include "server/step/shard_segments.h"
#include "server/store/served_weights.h"
#include "server/store/state_store.h"

namespace luwu {

// One addend of a shard and whose it is.
struct ShardSource {
  const std::byte* data = nullptr;
  uint32_t rank = 0;
  uint32_t micro_step = 0;
};

// The first non-finite contribution met while folding.
struct NonFiniteNote {
  uint32_t rank = 0;
  uint32_t micro_step = 0;
};

struct FoldRequest {
  uint32_t index = 0;
  std::span<const ShardSource> sources;
  float* sum = nullptr;
  bool first = false;  // `sum` holds nothing yet
};

struct UpdateRequest {
  uint32_t index = 0;
  uint64_t step = 0;     // version `step` becomes `step` + 1
  uint64_t applied = 0;  // updates the shard has had before
  std::span<const HyperParameters> groups;
  const float* sum = nullptr;             // null: nothing was folded
  std::optional<NonFiniteNote> sum_note;  // of what was folded
  std::span<const ShardSource> sources;   // after the sum, in order
};

struct UpdateResult {
  std::string non_finite;  // empty, or what is not finite and whose it is, in words
  uint32_t served_crc32c = 0;
};

class ShardUpdater {
 public:
  // All outlive the updater; `spec` is validated.
  ShardUpdater(const JobSpec& spec, const ShardMap& map, StateStore* store, ServedWeights* weights);

  std::optional<NonFiniteNote> Fold(const FoldRequest& request) const;
  // With a non-finite result the new generation and the served buffer hold nothing of use.
  UpdateResult Update(const UpdateRequest& request) const;
  // The bytes of version `step` under the number `step` + 1; returns their CRC32C.
  uint32_t Carry(uint32_t index, uint64_t step) const;
  // Version 0 (or the one version of a frozen shard) from the masters; seals its header. Gaps
  // become zero; what the optimizer never writes is made equal in both generations.
  void PublishInitial(uint32_t index) const;

  const std::vector<Segment>& segments(uint32_t index) const { return segments_[index]; }

 private:
  uint64_t UpdateBlock(const UpdateRequest& request, const ShardState& state,
                       const Segment& segment, uint64_t first, uint64_t count) const;
  void ConvertBlock(uint32_t index, uint64_t version, const float* master, uint64_t first,
                    uint64_t count) const;
  std::string DescribeNonFinite(const UpdateRequest& request, const Segment& segment,
                                uint64_t element) const;

  const JobSpec& spec_;
  const ShardMap& map_;
  StateStore* const store_;
  ServedWeights* const weights_;
  const float gradient_scale_;
  std::vector<std::vector<Segment>> segments_;  // by local shard
};

}  // namespace luwu
