// What a job is: model schema, optimizer, world size and options, as plain structs. Both sides
// derive every layout (shards, owners, region offsets) from this and the node list, so two specs
// must be equal for two processes to talk about the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/dtype.h"

namespace luwu {

inline constexpr uint64_t kDefaultShardElements = uint64_t{1} << 20;
inline constexpr uint32_t kDefaultSlotsPerWorker = 16;
inline constexpr uint32_t kWorldSizeMax = 1024;
inline constexpr uint32_t kLayersMax = 1u << 20;
inline constexpr uint32_t kGroupsMax = 256;
inline constexpr uint64_t kElementsMax = uint64_t{1} << 44;  // of one job
inline constexpr uint64_t kShardsMax = uint64_t{1} << 26;    // of one job

struct TensorSpec {
  std::string name;             // unique in the job; Hugging Face names are welcome
  std::vector<uint64_t> shape;  // every dimension >= 1; empty means a scalar
  uint64_t offset = 0;          // elements from the start of the layer
  uint32_t group = 0;           // hyper-parameter group, < JobSpec::groups
  bool trainable = true;

  bool operator==(const TensorSpec&) const = default;
};

// Product of the shape; error when it is zero or overflows.
StatusOr<uint64_t> TensorElements(const TensorSpec& tensor);

struct LayerSpec {
  std::string name;                 // unique in the job
  uint64_t elements = 0;            // flat length; tensors lie inside, gaps between them are zero
  std::vector<TensorSpec> tensors;  // by ascending offset, not overlapping, at least one

  bool operator==(const LayerSpec&) const = default;
  bool trainable() const {  // a layer with no trainable tensor is frozen: no state, never pushed
    for (const TensorSpec& tensor : tensors) {
      if (tensor.trainable) return true;
    }
    return false;
  }
};

enum class OptimizerKind : uint8_t { kUnspecified = 0, kAdamW = 1, kSgd = 2 };

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kUnspecified;
  bool sgd_momentum = false;  // SGD keeps a momentum buffer (state 4 -> 8 bytes per element)

  bool operator==(const OptimizerSpec&) const = default;
};

// Of one group in one step; each optimizer reads its own fields. Double, as torch computes them.
struct HyperParameters {
  double lr = 0;
  double weight_decay = 0;
  double beta1 = 0;       // AdamW
  double beta2 = 0;       // AdamW
  double eps = 0;         // AdamW
  double momentum = 0;    // SGD
  double dampening = 0;   // SGD
  bool nesterov = false;  // SGD

  bool operator==(const HyperParameters&) const = default;
};

// Refuses NaN, infinities, and values torch.optim refuses (negative lr, beta outside [0, 1), ...).
// `group` names the group in the message.
Status ValidateHyperParameters(const OptimizerSpec& optimizer, uint32_t group,
                               const HyperParameters& values);

enum class Reduction : uint8_t { kUnspecified = 0, kSum = 1, kMean = 2 };

// What a step with non-finite gradients ends as. In both cases no master is touched.
enum class NonFinitePolicy : uint8_t {
  kUnspecified = 0,
  kSkip = 1,  // the step ends `skipped`; the next step computes with the same weights
  kFail = 2,  // the step ends `failed` and the job accepts no further step
};

struct JobSpec {
  std::string name;  // 1..128 of [A-Za-z0-9._-], not starting with '.' or '-'
  uint32_t world_size = 0;
  std::vector<LayerSpec> layers;
  uint32_t groups = 1;
  OptimizerSpec optimizer;
  DType served_dtype = DType::kBFloat16;    // of the weights that workers fetch
  DType gradient_dtype = DType::kBFloat16;  // of the gradients in the slots
  Reduction reduction = Reduction::kMean;   // mean divides the sum by world_size
  NonFinitePolicy on_non_finite = NonFinitePolicy::kSkip;
  // Keeps the state of the last committed step until the next one commits, so that a step can be
  // undone as a whole (a second copy of the optimizer state). Without it `on_non_finite` must be
  // kFail, and a failed step leaves layers that were already updated in this step updated.
  bool keep_undo_state = true;
  uint64_t shard_elements = kDefaultShardElements;     // multiple of 64, 64..2^26
  uint32_t slots_per_worker = kDefaultSlotsPerWorker;  // on each node, 2..4096
  // Bytes on each node for gradients that arrive before their turn and cannot stay in their slot.
  uint64_t overflow_bytes = 64ull << 20;

  bool operator==(const JobSpec&) const = default;
};

// Everything that can be wrong with a spec, with the offending name in the message.
Status ValidateJobSpec(const JobSpec& spec);

// First difference in words ("layer 3 'h.2': 100 elements here, 104 in the job"), empty if equal.
std::string DescribeDifference(const JobSpec& here, const JobSpec& in_job);

// Fingerprint (XXH3) of every field, for logs and join requests.
uint64_t FingerprintOf(const JobSpec& spec);

std::string_view OptimizerName(OptimizerKind kind);  // "adamw"

}  // namespace luwu
