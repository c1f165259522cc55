#include "server/step/step_gate.h"

#include <algorithm>

#include "common/base/check.h"

namespace luwu {
namespace {

// The first field that differs, in words; empty when equal.
std::string DescribeDifference(const HyperParameters& here, const HyperParameters& there) {
  const auto differ = [](const char* name, auto a, auto b) {
    return a == b ? std::string() : fmt::format("{} {} against {}", name, a, b);
  };
  for (const std::string& text :
       {differ("lr", here.lr, there.lr),
        differ("weight_decay", here.weight_decay, there.weight_decay),
        differ("beta1", here.beta1, there.beta1), differ("beta2", here.beta2, there.beta2),
        differ("eps", here.eps, there.eps), differ("momentum", here.momentum, there.momentum),
        differ("dampening", here.dampening, there.dampening),
        differ("nesterov", here.nesterov, there.nesterov),
        differ("lr_decay", here.lr_decay, there.lr_decay),
        differ("max_norm", here.max_norm, there.max_norm)}) {
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

StepGate::StepGate(uint32_t world_size, uint64_t shards, uint32_t clip_units, float loss_scale)
    : shards_(shards),
      ranks_(world_size, Rank{false, shards}),
      pending_shards_(shards),
      squares_(clip_units),
      loss_scale_(loss_scale) {}

Status StepGate::Begin(uint32_t rank, const std::vector<HyperParameters>& groups) {
  LUWU_CHECK(!groups.empty(), "a job has at least one group");
  if (groups_.empty()) {
    groups_ = groups;
    groups_from_ = rank;
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string difference = DescribeDifference(groups[i], groups_[i]);
    if (difference.empty()) continue;
    return Error(
        ErrorCode::kInvalidArgument,
        "rank {} begins step {} with other hyper-parameters than rank {}: group {}, {}; all "
        "ranks must pass equal values",
        rank, step_, groups_from_, i, difference);
  }
  if (!ranks_[rank].begun) ++begun_count_;
  ranks_[rank].begun = true;
  return OkStatus();
}

void StepGate::ForgetRank(uint32_t rank) {
  if (ranks_[rank].begun) --begun_count_;
  ranks_[rank].begun = false;
  if (begun_count_ == 0 && !update_begun_) groups_.clear();
}

void StepGate::Finish(const StepDecision& decision) {
  last_ = Decided{step_, loss_scale_, decision};
  loss_scale_ = decision.next_loss_scale;
  ++step_;
  phase_ = Phase::kOpen;
  std::fill(ranks_.begin(), ranks_.end(), Rank{false, shards_});
  begun_count_ = 0;
  pending_shards_ = shards_;
  update_begun_ = false;
  groups_.clear();
  non_finite_.clear();
  std::fill(squares_.begin(), squares_.end(), ExactSum());
}

}  // namespace luwu
