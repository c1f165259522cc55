// Job schemas as C++ values, and their C form. Part of luwu.hpp.
#ifndef LUWU_SCHEMA_HPP_
#define LUWU_SCHEMA_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "luwu.h"

namespace luwu::cxx {

struct Tensor {
  std::string name = {};
  std::vector<uint64_t> shape = {};
  uint32_t group = 0;
  bool trainable = true;
  uint64_t offset = UINT64_MAX;  // UINT64_MAX: right after the tensor before it

  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t size : shape) product *= size;
    return product;
  }
};

struct Layer {
  std::string name = {};
  std::vector<Tensor> tensors = {};
  uint64_t elements = 0;  // 0: up to the end of the last tensor
};

// An `initial` of 0 means no loss scaling; other zeros mean the library's defaults.
struct LossScaling {
  double initial = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  uint32_t growth_interval = 0;  // UINT32_MAX: never grows
};

struct JobSpec {
  std::string name = {};
  uint32_t world_size = 1;
  std::vector<Layer> layers = {};
  uint32_t groups = 1;
  luwu_optimizer optimizer = LUWU_ADAMW;
  bool sgd_momentum = false;
  luwu_dtype served_dtype = LUWU_BFLOAT16;
  luwu_dtype gradient_dtype = LUWU_BFLOAT16;
  luwu_reduction reduction = LUWU_MEAN;
  luwu_non_finite on_non_finite = LUWU_NON_FINITE_SKIP;
  bool keep_undo_state = true;
  uint32_t slots_per_worker = 0;
  uint64_t shard_elements = 0;
  uint64_t overflow_bytes = UINT64_MAX;
  bool accumulates = false;  // several micro-steps before layers are closed
  luwu_update_mode update_mode = LUWU_UPDATE_AUTO;
  luwu_dtype held_dtype = LUWU_FLOAT32;
  luwu_clip_scope clip_scope = LUWU_CLIP_NONE;
  luwu_state_precision state_precision = LUWU_STATE_FLOAT32;
  luwu_master_format master_format = LUWU_MASTER_FLOAT32;
  bool amsgrad = false;
  uint64_t rounding_seed = 0;
  double initial_accumulator = 0;
  LossScaling loss_scaling = {};
  uint32_t durable_every = 0;  // steps from one durable point to the next; 0: there is none
  luwu_durability durability = LUWU_MEMORY;
  uint64_t memory_bytes = 0;
};

// The C form of a JobSpec, which must outlive it.
class CJobSpec {
 public:
  explicit CJobSpec(const JobSpec& from) {
    for (const Layer& layer : from.layers) Add(layer);
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i].tensors = tensors_[i].data();
    spec_.struct_size = sizeof spec_;
    spec_.world_size = from.world_size;
    spec_.name = from.name.c_str();
    spec_.layers = layers_.data();
    spec_.layer_count = static_cast<uint32_t>(layers_.size());
    spec_.groups = from.groups;
    spec_.optimizer = from.optimizer;
    spec_.sgd_momentum = from.sgd_momentum;
    spec_.served_dtype = from.served_dtype;
    spec_.gradient_dtype = from.gradient_dtype;
    spec_.reduction = from.reduction;
    spec_.on_non_finite = from.on_non_finite;
    spec_.keep_undo_state = from.keep_undo_state;
    spec_.slots_per_worker = from.slots_per_worker;
    spec_.shard_elements = from.shard_elements;
    spec_.overflow_bytes = from.overflow_bytes;
    spec_.accumulates = from.accumulates ? 1 : 0;
    spec_.update_mode = from.update_mode;
    spec_.held_dtype = from.held_dtype;
    spec_.clip_scope = from.clip_scope;
    spec_.state_precision = from.state_precision;
    spec_.master_format = from.master_format;
    spec_.amsgrad = from.amsgrad;
    spec_.rounding_seed = from.rounding_seed;
    spec_.initial_accumulator = from.initial_accumulator;
    spec_.loss_scale_initial = from.loss_scaling.initial;
    spec_.loss_scale_growth_factor = from.loss_scaling.growth_factor;
    spec_.loss_scale_backoff_factor = from.loss_scaling.backoff_factor;
    spec_.loss_scale_growth_interval = from.loss_scaling.growth_interval;
    spec_.durable_every = from.durable_every;
    spec_.durability = from.durability;
    spec_.memory_bytes = from.memory_bytes;
  }
  CJobSpec(const CJobSpec&) = delete;
  CJobSpec& operator=(const CJobSpec&) = delete;

  const luwu_job_spec* get() const { return &spec_; }

 private:
  void Add(const Layer& layer) {
    std::vector<luwu_tensor_spec>& tensors = tensors_.emplace_back();
    uint64_t end = 0;
    for (const Tensor& tensor : layer.tensors) {
      luwu_tensor_spec out = {};
      out.struct_size = sizeof out;
      out.group = tensor.group;
      out.name = tensor.name.c_str();
      out.shape = tensor.shape.data();
      out.dims = static_cast<uint32_t>(tensor.shape.size());
      out.trainable = tensor.trainable;
      out.offset = tensor.offset == UINT64_MAX ? end : tensor.offset;
      end = out.offset + tensor.elements();
      tensors.push_back(out);
    }
    luwu_layer_spec out = {};
    out.struct_size = sizeof out;
    out.tensor_count = static_cast<uint32_t>(tensors.size());
    out.name = layer.name.c_str();
    out.elements = layer.elements != 0 ? layer.elements : end;
    layers_.push_back(out);
  }

  luwu_job_spec spec_ = {};
  std::vector<luwu_layer_spec> layers_;
  std::vector<std::vector<luwu_tensor_spec>> tensors_;
};

}  // namespace luwu::cxx

#endif  // LUWU_SCHEMA_HPP_
