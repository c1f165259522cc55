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
inline constexpr uint32_t kLayerUnitsMax = 1u << 15;         // layers that are clipped one by one
inline constexpr uint64_t kElementsMax = uint64_t{1} << 44;  // of one job
inline constexpr uint64_t kShardsMax = uint64_t{1} << 26;    // of one job
inline constexpr size_t kDimensionsMax = 16;                 // of one tensor

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

// Formulas and sources: server/optim/<name>.h; how state is stored: docs/OPTIMIZERS.md.
enum class OptimizerKind : uint8_t {
  kUnspecified = 0,
  kAdamW = 1,
  kSgd = 2,
  kAdam = 3,  // with L2 regularisation in the gradient
  kLion = 4,
  kAdagrad = 5,
};

// Of all state arrays but the master.
enum class StatePrecision : uint8_t {
  kUnspecified = 0,
  kFloat32 = 1,
  kBFloat16 = 2,    // stochastically rounded
  kBlockwise8 = 3,  // 8 bits relative to the largest of a block of 256, stochastically rounded
};

enum class MasterFormat : uint8_t {
  kUnspecified = 0,
  kFloat32 = 1,
  // The upper 16 bits are the served copy (which must be bfloat16 and then rounds ties away from
  // zero), the state keeps the lower 16: the same fp32 value in two bytes less.
  kSplit = 2,
};

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kUnspecified;
  bool sgd_momentum = false;  // SGD keeps a momentum buffer
  bool amsgrad = false;       // Adam and AdamW keep the running maximum of the second moment
  StatePrecision state_precision = StatePrecision::kFloat32;
  MasterFormat master_format = MasterFormat::kFloat32;
  uint64_t rounding_seed = 0;      // of stochastic rounding
  double initial_accumulator = 0;  // Adagrad: its state before the first update

  bool operator==(const OptimizerSpec&) const = default;
};

// Of one group in one step; each optimizer reads its own fields. Double, as torch computes them.
struct HyperParameters {
  double lr = 0;
  double weight_decay = 0;
  double beta1 = 0;       // Adam, AdamW, Lion
  double beta2 = 0;       // Adam, AdamW, Lion
  double eps = 0;         // Adam, AdamW, Adagrad
  double momentum = 0;    // SGD
  double dampening = 0;   // SGD
  bool nesterov = false;  // SGD
  double lr_decay = 0;    // Adagrad
  // Largest gradient norm, of what JobSpec::clip_scope names; 0: not limited. With scope global or
  // layer equal in all groups.
  double max_norm = 0;

  bool operator==(const HyperParameters&) const = default;
};

// Unknown values, options of another optimizer, combinations that are not built.
Status ValidateOptimizerSpec(const OptimizerSpec& optimizer);

// Refuses NaN, infinities, and values torch.optim refuses (negative lr, beta outside [0, 1), ...).
// `group` names the group in the message.
Status ValidateHyperParameters(const OptimizerSpec& optimizer, uint32_t group,
                               const HyperParameters& values);

struct JobSpec;
// The sets of one step, one for each group: each valid, and max_norm as the job's clip scope wants
// it.
Status ValidateStep(const JobSpec& spec, const std::vector<HyperParameters>& groups);

enum class Reduction : uint8_t { kUnspecified = 0, kSum = 1, kMean = 2 };

// What a step with non-finite gradients ends as. In both cases no master is touched.
enum class NonFinitePolicy : uint8_t {
  kUnspecified = 0,
  kSkip = 1,  // the step ends `skipped`; the next step computes with the same weights
  kFail = 2,  // the step ends `failed` and the job accepts no further step
};

// When a step's gradients are applied; docs/OPTIMIZERS.md.
enum class UpdateMode : uint8_t {
  kUnspecified = 0,
  kImmediate = 1,    // each shard as soon as its last gradient is in; no clipping, no loss scaling
  kDeferred = 2,     // sums are held until all nodes know norm and finiteness of the whole step
  kSpeculative = 3,  // at once into the next generation, redone from the held sums if need be
};

// Which gradients share one norm that is clipped to HyperParameters::max_norm.
enum class ClipScope : uint8_t { kUnspecified = 0, kNone = 1, kGlobal = 2, kGroup = 3, kLayer = 4 };

// Dynamic loss scale in the manner of torch.cuda.amp.GradScaler, kept by the job: gradients are
// divided by the scale; a step with non-finite gradients is skipped and the scale multiplied by
// `backoff_factor`; after `growth_interval` applied steps in a row it is multiplied by
// `growth_factor`.
struct LossScaling {
  double initial_scale = 0;  // 0: no loss scaling
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint32_t growth_interval = 2000;  // 0: never grows

  bool operator==(const LossScaling&) const = default;
};

// What a commit has reached when it answers; docs/DURABILITY.md.
enum class Durability : uint8_t {
  kUnspecified = 0,
  kMemory = 1,  // survives the workers
  kLogged = 2,  // ... and the daemons' processes
  kSynced = 3,  // ... and the machines' power
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
  UpdateMode update_mode = UpdateMode::kImmediate;
  DType held_dtype = DType::kFloat32;  // of held sums: float32, or bfloat16 (then all modes round)
  ClipScope clip_scope = ClipScope::kNone;
  LossScaling loss_scaling;
  // Keeps the state of the last committed step until the next one commits, so that a step can be
  // undone as a whole (a second copy of the optimizer state). Without it `on_non_finite` must be
  // kFail, and a failed step leaves layers that were already updated in this step updated. Deferred
  // updates need no undo: they ignore it. Speculative ones need it.
  bool keep_undo_state = true;
  uint64_t shard_elements = kDefaultShardElements;     // multiple of 64, 64..2^26
  uint32_t slots_per_worker = kDefaultSlotsPerWorker;  // on each node, 2..4096
  // Bytes on each node for gradients that arrive before their turn and cannot stay in their slot.
  uint64_t overflow_bytes = 64ull << 20;
  // Each shard has memory of its own for the sum of what has come in, so that a worker can push any
  // number of micro-steps before it closes. (Held sums in float32 are such memory already.)
  bool accumulates = false;
  // Every so many steps the weights and all state of the step are written to disk, so that the job
  // can go back to it; 0: never. Such a step is a durable point.
  uint32_t durable_every = 0;
  // What the commit that leads to a durable point waits for. Above kMemory `durable_every` must not
  // be 0; with kMemory points are made (synced) in the background.
  Durability durability = Durability::kMemory;
  // Most memory that the job may take on each node, with the rest of its state on disk; 0: what the
  // node has left.
  uint64_t memory_bytes = 0;

  bool operator==(const JobSpec&) const = default;
};

// Everything that can be wrong with a spec, with the offending name in the message.
Status ValidateJobSpec(const JobSpec& spec);

// First difference in words ("layer 3 'h.2': 100 elements here, 104 in the job"), empty if equal.
std::string DescribeDifference(const JobSpec& here, const JobSpec& in_job);

// Bytes that a copy of the spec takes in memory, about: strings and vectors with their heap blocks.
uint64_t SpecBytes(const JobSpec& spec);

// Fingerprint (XXH3) of every field, for logs and join requests.
uint64_t FingerprintOf(const JobSpec& spec);

// Names; empty for values that are not known.
std::string_view OptimizerName(OptimizerKind kind);             // "adamw"
std::string_view StatePrecisionName(StatePrecision precision);  // "bfloat16"
std::string_view MasterFormatName(MasterFormat format);         // "split"
std::string_view UpdateModeName(UpdateMode mode);               // "deferred"
std::string_view ClipScopeName(ClipScope scope);                // "global"
std::string_view DurabilityName(Durability durability);         // "synced"

// Whether state has a second generation, and whether sums are held until the decision.
bool KeepsUndoState(const JobSpec& spec);
bool HoldsSums(const JobSpec& spec);
// Whether held buffers take running sums, and whether memory is set aside for these alone.
bool SumsInHeld(const JobSpec& spec);
bool KeepsRunningSums(const JobSpec& spec);

}  // namespace luwu
