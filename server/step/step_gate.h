// The step that is open on this node: who has begun it and with which hyper-parameters, how many
// shards each rank still owes, how many are not ready for the decision yet, what was found
// non-finite, the squared norms, and how the last step ended.
//
// Life: open -> reporting (all shards are ready; the lead is asked) -> the decision: the next step
// is open, or the job has failed. A report that could not be delivered waits in `report failed` to
// be repeated.
//
// Pure logic. Not thread-safe: guarded by its job's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "server/step/step_reporter.h"

namespace luwu {

class StepGate {
 public:
  enum class Phase : uint8_t { kOpen, kReporting, kReportFailed, kFailed };
  struct Decided {
    uint64_t step = 0;
    float loss_scale = 1;
    StepDecision decision;
  };

  // `shards`: trainable shards on this node. `loss_scale`: of step 0.
  StepGate(uint32_t world_size, uint64_t shards, uint32_t clip_units = 1, float loss_scale = 1);

  uint64_t step() const { return step_; }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }

  // The first rank sets the hyper-parameters; a rank that differs gets kInvalidArgument naming both
  // ranks and the first difference.
  Status Begin(uint32_t rank, const std::vector<HyperParameters>& groups);
  // The rank's session was replaced. When nobody else has begun the step and nothing was summed
  // with the hyper-parameters, they may be given anew.
  void ForgetRank(uint32_t rank);
  bool begun_by_anyone() const { return begun_count_ > 0; }
  const std::vector<HyperParameters>& groups() const { return groups_; }
  float loss_scale() const { return loss_scale_; }
  // From now on the hyper-parameters of this step stay.
  void NoteUpdateBegun() { update_begun_ = true; }

  void RankClosedShard(uint32_t rank) { --ranks_[rank].open_shards; }
  void RankReopenedShard(uint32_t rank) { ++ranks_[rank].open_shards; }
  uint64_t open_shards(uint32_t rank) const { return ranks_[rank].open_shards; }
  bool RankFinished(uint32_t rank) const {
    return ranks_[rank].begun && ranks_[rank].open_shards == 0;
  }
  void ShardReady() { --pending_shards_; }
  void NoteNonFinite(const std::string& what) {
    if (non_finite_.empty()) non_finite_ = what;
  }
  const std::string& non_finite() const { return non_finite_; }
  void AddSquares(uint32_t unit, const ExactSum& sum) { squares_[unit].Merge(sum); }
  const std::vector<ExactSum>& squares() const { return squares_; }  // by clip unit
  // Everything of the step is ready, and every rank has taken part.
  bool ReadyToReport() const {
    return phase_ == Phase::kOpen && pending_shards_ == 0 && begun_count_ == ranks_.size();
  }

  // Before anything else: the job goes on from a point.
  void Restore(uint64_t step, float loss_scale) {
    step_ = step;
    loss_scale_ = loss_scale;
  }
  // Remembers how the step ended and opens the next one. `groups()` is empty then.
  void Finish(const StepDecision& decision);
  const std::optional<Decided>& last() const { return last_; }

 private:
  struct Rank {
    bool begun = false;
    uint64_t open_shards = 0;
  };

  const uint64_t shards_;
  uint64_t step_ = 0;
  Phase phase_ = Phase::kOpen;
  std::vector<Rank> ranks_;
  uint32_t begun_count_ = 0;
  uint64_t pending_shards_ = 0;
  bool update_begun_ = false;
  std::vector<HyperParameters> groups_;  // empty: nobody has begun
  uint32_t groups_from_ = 0;             // the rank that gave them
  std::string non_finite_;
  std::vector<ExactSum> squares_;
  float loss_scale_;
  std::optional<Decided> last_;
};

}  // namespace luwu
