// What the update threads compute for one shard: fold contributions into a running sum, hold a sum
// and take its norm, update state and served copy in one pass, carry a version over unchanged.
// Works on memory that its caller has set apart for the call; knows nothing of sessions, slots and
// locks.
//
// A shard is worked on in blocks that stay in the cache, so that the served copy is checksummed
// while it is hot. The blocks are the same for all modes: so are the norms.
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
#include "server/step/state_values.h"
#include "server/step/step_reporter.h"
#include "server/store/served_copies.h"
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

// Sum of squares of a shard's part of a clip unit.
struct UnitSum {
  uint32_t unit = 0;
  ExactSum sum;
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
  float loss_scale = 1;
  // Null: not decided yet, and the gradients are `sum` and `sources`. Else they are what is held.
  const StepDecision* decision = nullptr;
  const float* sum = nullptr;             // null: nothing was folded; may be what is held
  std::optional<NonFiniteNote> sum_note;  // of what was folded
  std::span<const ShardSource> sources;   // after the sum, in order
  std::byte* held = nullptr;              // null: the job holds no sums
  std::span<UnitSum> squares;             // UnitsOf(index); written unless decided
};

struct UpdateResult {
  Status status;           // not OK: the job ends, and nothing was computed
  std::string non_finite;  // empty, or what is not finite and whose it is, in words
  uint32_t served_crc32c = 0;
};

class ShardUpdater {
 public:
  // All outlive the updater; `spec` is validated.
  ShardUpdater(const JobSpec& spec, const ShardMap& map, StateStore* store, ServedCopies* weights);

  std::optional<NonFiniteNote> Fold(const FoldRequest& request) const;
  // Sum and sources into the held buffer, with their norms.
  UpdateResult Hold(const UpdateRequest& request) const;
  // Into the next generation and the served copy of the next version; not decided yet and with a
  // held buffer, that is filled as Hold does. With a non-finite result all of these hold nothing of
  // use.
  UpdateResult Update(const UpdateRequest& request) const;
  // The bytes of version `step` under the number `step` + 1; returns their CRC32C.
  uint32_t Carry(uint32_t index, uint64_t step) const;

  // Writes masters of the current generation, and of version 0 where the served copy holds part of
  // them (whoever reads that meanwhile finds it gone).
  // Errors: the storage's.
  Status LoadMasters(uint32_t index, uint64_t first, std::span<const float> values) const;
  // Version 0 (or the one version of a frozen shard) from the masters; seals its header. Gaps
  // become zero; what the optimizer never writes is made equal in both generations. Moments become
  // what they are before the first update, also when some were loaded before (`state_loaded`).
  Status PublishInitial(uint32_t index, bool state_loaded) const;
  // Whether elements [first, first + count) are a range for LoadState: whole blocks of one segment.
  bool IsStateRange(uint32_t index, uint64_t first, uint64_t count) const;
  // Writes a moment of the current generation.
  Status LoadState(uint32_t index, uint32_t array, uint64_t first,
                   std::span<const float> values) const;
  // As PublishInitial, of any version, and with moments as they are.
  Status PublishLoaded(uint32_t index, uint64_t version) const;
  // `version` (or the one version of a frozen shard) from state that was stored; `served` is what
  // was stored of the served copy, of split masters only. Seals its header.
  Status PublishRestored(uint32_t index, uint64_t version, const optim::StateArrays& state,
                         const std::byte* served) const;
  // Elements [first, first + out.size()) of an array, in fp32.
  void ReadState(const StateView& view, uint64_t first, std::span<float> out) const;

  const std::vector<Segment>& segments(uint32_t index) const { return segments_[index]; }
  // The clip units that the shard's trainable elements belong to, with sums of 0.
  std::vector<UnitSum> UnitsOf(uint32_t index) const;

 private:
  bool trainable(uint32_t index) const {
    return spec_.layers[map_.shards()[index].layer].trainable();
  }
  // Which clip unit a segment belongs to, and what its gradients are multiplied with.
  uint32_t UnitOf(uint32_t index, const Segment& segment) const;
  float ScaleOf(const UpdateRequest& request, const Segment& segment) const;
  // The gradients of a request at one element of the shard; valid until the thread's next call.
  std::span<const optim::GradientSource> GradientsAt(const UpdateRequest& request,
                                                     uint64_t element) const;
  optim::UpdateOutcome HoldBlock(const UpdateRequest& request, const Segment& segment,
                                 uint64_t first, uint64_t count) const;
  // Where one update reads and writes.
  struct Buffers {
    ShardState state;
    std::byte* served = nullptr;
  };
  optim::UpdateOutcome UpdateBlock(const UpdateRequest& request, const Buffers& buffers,
                                   const Segment& segment, uint64_t first, uint64_t count) const;
  // Of a tensor that is frozen in a layer that is not.
  void CarryBlock(const UpdateRequest& request, const Buffers& buffers, uint64_t first,
                  uint64_t count) const;
  // False when the block is not finite; `result` says so then.
  bool TakeOutcome(const UpdateRequest& request, const Segment& segment, uint64_t first,
                   const optim::UpdateOutcome& outcome, UpdateResult* result) const;
  std::string DescribeNonFinite(const UpdateRequest& request, const Segment& segment,
                                uint64_t element) const;
  optim::StateRange RangeOf(uint32_t index, const optim::StateArrays& state, const Segment& segment,
                            uint64_t first, uint64_t count) const;
  void InitBlock(uint32_t index, const Buffers& buffers, const Segment& segment, uint64_t first,
                 uint64_t count) const;
  void InitMoments(uint32_t index, const ShardState& state, const Segment& segment, uint64_t first,
                   uint64_t count) const;

  const JobSpec& spec_;
  const ShardMap& map_;
  StateStore* const store_;
  ServedCopies* const weights_;
  const bool masters_in_served_;                // the split format
  std::vector<std::vector<Segment>> segments_;  // by local shard
  std::vector<uint64_t> job_elements_;          // job-wide number of the first, by local shard
};

}  // namespace luwu
