// The optimizer engine behind a C interface that ctypes can call, for tests and benchmarks that
// hold it against torch in one process. Not installed; the caller owns all memory.
#include <cstdint>
#include <vector>

#include "server/optim/kernel_choice.h"
#include "server/optim/optimizer.h"

namespace {

using luwu::DType;
namespace optim = luwu::optim;

}  // namespace

extern "C" {

struct EngineOptimizer {
  int32_t kind;
  int32_t sgd_momentum;
  int32_t amsgrad;
  int32_t state_precision;
  int32_t master_format;
  int32_t reserved;
  uint64_t rounding_seed;
  double initial_accumulator;
};

struct EngineHyper {
  double lr, weight_decay, beta1, beta2, eps, momentum, dampening, lr_decay;
  int64_t nesterov;
};

// One shard of one segment.
struct EngineShard {
  uint64_t elements;
  std::byte* arrays_in[optim::kStateArraysMax];
  std::byte* arrays_out[optim::kStateArraysMax];
  std::byte* served_in;
  std::byte* served;
  int32_t served_dtype;
  int32_t gradient_dtype;
  const std::byte* const* gradients;
  uint64_t gradient_count;
  uint64_t job_element;
};

static luwu::OptimizerSpec SpecOf(const EngineOptimizer* in) {
  luwu::OptimizerSpec spec;
  spec.kind = static_cast<luwu::OptimizerKind>(in->kind);
  spec.sgd_momentum = in->sgd_momentum != 0;
  spec.amsgrad = in->amsgrad != 0;
  spec.state_precision = static_cast<luwu::StatePrecision>(in->state_precision);
  spec.master_format = static_cast<luwu::MasterFormat>(in->master_format);
  spec.rounding_seed = in->rounding_seed;
  spec.initial_accumulator = in->initial_accumulator;
  return spec;
}

static optim::StateRange StateOf(const EngineShard* shard, std::byte* const* arrays,
                                 std::byte* served) {
  optim::StateRange range;
  range.count = range.shard_elements = shard->elements;
  for (uint32_t k = 0; k < optim::kStateArraysMax; ++k) range.state.data[k] = arrays[k];
  range.served = served;
  return range;
}

// 1 when the daemon would accept the optimizer.
int32_t engine_is_valid(const EngineOptimizer* optimizer) {
  return luwu::ValidateOptimizerSpec(SpecOf(optimizer)).ok() ? 1 : 0;
}

// Bytes of array `index`, 0 when there is none.
uint64_t engine_array_bytes(const EngineOptimizer* optimizer, uint32_t index, uint64_t elements) {
  const optim::StateLayout layout = optim::LayoutOf(SpecOf(optimizer));
  return index < layout.count ? optim::ArrayBytes(layout.formats[index], elements, 1) : 0;
}

void engine_initialise(const EngineOptimizer* optimizer, const EngineShard* shard,
                       const float* masters) {
  const luwu::OptimizerSpec spec = SpecOf(optimizer);
  const optim::StateRange range = StateOf(shard, shard->arrays_in, shard->served_in);
  optim::InitialState(spec, range);
  optim::WriteMasters(spec, range, masters);
}

void engine_read(const EngineOptimizer* optimizer, const EngineShard* shard, uint32_t array,
                 float* values) {
  optim::ReadState(SpecOf(optimizer), StateOf(shard, shard->arrays_in, shard->served_in), array,
                   values);
}

// The squared norm of the scaled sum; NaN when it is not finite.
double engine_update(const EngineOptimizer* optimizer, const EngineHyper* in, uint64_t applied,
                     const EngineShard* shard, float gradient_scale) {
  luwu::HyperParameters hyper;
  hyper.lr = in->lr;
  hyper.weight_decay = in->weight_decay;
  hyper.beta1 = in->beta1;
  hyper.beta2 = in->beta2;
  hyper.eps = in->eps;
  hyper.momentum = in->momentum;
  hyper.dampening = in->dampening;
  hyper.lr_decay = in->lr_decay;
  hyper.nesterov = in->nesterov != 0;
  std::vector<optim::GradientSource> gradients;
  for (uint64_t i = 0; i < shard->gradient_count; ++i) {
    gradients.push_back({shard->gradients[i], static_cast<DType>(shard->gradient_dtype)});
  }
  optim::UpdateRange range;
  range.count = range.shard_elements = shard->elements;
  range.job_element = shard->job_element;
  range.gradients = gradients;
  range.gradient_scale = gradient_scale;
  for (uint32_t k = 0; k < optim::kStateArraysMax; ++k) {
    range.in.data[k] = shard->arrays_in[k];
    range.out.data[k] = shard->arrays_out[k];
  }
  range.served_in = shard->served_in;
  range.served = shard->served;
  range.served_dtype = static_cast<DType>(shard->served_dtype);
  const optim::UpdateOutcome outcome = optim::ApplyUpdate(SpecOf(optimizer), hyper, applied, range);
  return outcome.non_finite == optim::kAllFinite ? outcome.squared_norm
                                                 : std::numeric_limits<double>::quiet_NaN();
}

void engine_choose_kernels(int32_t portable) {
  optim::ChooseKernels(portable != 0 ? optim::KernelChoice::kPortable : optim::KernelChoice::kBest);
}

}  // extern "C"
