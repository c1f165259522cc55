#include "common/tensor/job_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

namespace luwu {
namespace {

JobSpec GoodSpec() {
  JobSpec spec;
  spec.name = "run-1";
  spec.world_size = 2;
  spec.groups = 2;
  spec.optimizer.kind = OptimizerKind::kAdamW;
  spec.layers = {
      {"embed", 100, {{"wte", {10, 10}, 0, 0, true}}},
      {"h.0",
       80,
       {{"h.0.w", {8, 8}, 0, 0, true},
        {"h.0.b", {8}, 64, 1, true},
        {"h.0.scale", {}, 79, 1, false}}},
  };
  return spec;
}

TEST(ValidateJobSpecTest, AcceptsAGoodSpec) {
  EXPECT_TRUE(ValidateJobSpec(GoodSpec()).ok()) << ToString(ValidateJobSpec(GoodSpec()));
  JobSpec frozen = GoodSpec();
  for (LayerSpec& layer : frozen.layers) {
    for (TensorSpec& tensor : layer.tensors) tensor.trainable = false;
  }
  EXPECT_TRUE(ValidateJobSpec(frozen).ok()) << "a job to be read only is fine";
  JobSpec large = GoodSpec();
  large.layers[0].elements = kElementsMax - large.layers[1].elements;
  EXPECT_TRUE(ValidateJobSpec(large).ok()) << ToString(ValidateJobSpec(large));
}

TEST(ValidateJobSpecTest, AcceptsTheLimitsOfEachOption) {
  const std::function<void(JobSpec&)> changes[] = {
      [](JobSpec& s) { s.name = std::string(128, 'a'); },
      [](JobSpec& s) { s.name = "A.b_c-9"; },
      [](JobSpec& s) { s.world_size = 1; },
      [](JobSpec& s) { s.world_size = kWorldSizeMax; },
      [](JobSpec& s) { s.groups = kGroupsMax; },
      [](JobSpec& s) { s.shard_elements = 64; },
      [](JobSpec& s) { s.shard_elements = uint64_t{1} << 26; },
      [](JobSpec& s) { s.slots_per_worker = 2; },
      [](JobSpec& s) { s.slots_per_worker = 4096; },
      [](JobSpec& s) { s.overflow_bytes = 0; },
      [](JobSpec& s) { s.served_dtype = DType::kFloat32; },
      [](JobSpec& s) { s.gradient_dtype = DType::kFloat16; },
      [](JobSpec& s) { s.reduction = Reduction::kSum; },
      [](JobSpec& s) { s.on_non_finite = NonFinitePolicy::kFail, s.keep_undo_state = false; },
      [](JobSpec& s) {
        s.optimizer = {OptimizerKind::kSgd, true};
      },
  };
  int index = 0;
  for (const auto& change : changes) {
    JobSpec spec = GoodSpec();
    change(spec);
    EXPECT_TRUE(ValidateJobSpec(spec).ok()) << index << ": " << ToString(ValidateJobSpec(spec));
    ++index;
  }
}

struct Refusal {
  std::string wanted;  // part of the message: the offender, and what to do
  std::function<void(JobSpec&)> change;
};

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    JobSpec spec = GoodSpec();
    refusal.change(spec);
    const Status status = ValidateJobSpec(spec);
    ASSERT_FALSE(status.ok()) << refusal.wanted;
    EXPECT_LE(static_cast<int>(CodeOf(status)), -100) << refusal.wanted;
    EXPECT_NE(MessageOf(status).find(refusal.wanted), std::string::npos)
        << "wanted '" << refusal.wanted << "' in: " << MessageOf(status);
  }
}

TEST(ValidateJobSpecTest, RefusesBadOptions) {
  ExpectRefused({
      {"0 characters", [](JobSpec& s) { s.name.clear(); }},
      {"129 characters", [](JobSpec& s) { s.name = std::string(129, 'a'); }},
      {"'.hidden'", [](JobSpec& s) { s.name = ".hidden"; }},
      {"'-x'", [](JobSpec& s) { s.name = "-x"; }},
      {"'a/b'", [](JobSpec& s) { s.name = "a/b"; }},
      {"job 'run-1': world_size is 0", [](JobSpec& s) { s.world_size = 0; }},
      {"world_size is 1025", [](JobSpec& s) { s.world_size = 1025; }},
      {"groups is 0", [](JobSpec& s) { s.groups = 0; }},
      {"groups is 257; choose 1 to 256", [](JobSpec& s) { s.groups = 257; }},
      {"choose adamw, adam, sgd, lion or adagrad",
       [](JobSpec& s) { s.optimizer.kind = OptimizerKind::kUnspecified; }},
      {"kind 77", [](JobSpec& s) { s.optimizer.kind = static_cast<OptimizerKind>(77); }},
      {"sgd_momentum", [](JobSpec& s) { s.optimizer.sgd_momentum = true; }},
      {"served_dtype: the element type float64",
       [](JobSpec& s) { s.served_dtype = DType::kFloat64; }},
      {"gradient_dtype: the element type 0",
       [](JobSpec& s) { s.gradient_dtype = DType::kUnspecified; }},
      {"reduction", [](JobSpec& s) { s.reduction = Reduction::kUnspecified; }},
      {"on_non_finite", [](JobSpec& s) { s.on_non_finite = NonFinitePolicy::kUnspecified; }},
      {"keep_undo_state", [](JobSpec& s) { s.keep_undo_state = false; }},
      {"shard_elements is 0", [](JobSpec& s) { s.shard_elements = 0; }},
      {"shard_elements is 63", [](JobSpec& s) { s.shard_elements = 63; }},
      {"multiple of 64", [](JobSpec& s) { s.shard_elements = 65; }},
      {"shard_elements is", [](JobSpec& s) { s.shard_elements = (uint64_t{1} << 26) + 64; }},
      {"slots_per_worker is 1", [](JobSpec& s) { s.slots_per_worker = 1; }},
      {"slots_per_worker is 4097", [](JobSpec& s) { s.slots_per_worker = 4097; }},
      {"17 dimensions", [](JobSpec& s) { s.layers[0].tensors[0].shape.resize(17, 1); }},
      {"overflow_bytes", [](JobSpec& s) { s.overflow_bytes = ~uint64_t{0}; }},
  });
}

TEST(ValidateJobSpecTest, RefusesBadOptimizerOptions) {
  const double nan = std::nan("");
  ExpectRefused({
      {"state_precision 0", [](JobSpec& s) { s.optimizer.state_precision = StatePrecision(0); }},
      {"state_precision 9", [](JobSpec& s) { s.optimizer.state_precision = StatePrecision(9); }},
      {"master_format 0", [](JobSpec& s) { s.optimizer.master_format = MasterFormat(0); }},
      {"master_format 3", [](JobSpec& s) { s.optimizer.master_format = MasterFormat(3); }},
      {"initial_accumulator is 1 but the optimizer is adamw",
       [](JobSpec& s) { s.optimizer.initial_accumulator = 1; }},
      {"initial_accumulator is -1",
       [](JobSpec& s) {
         s.optimizer = {.kind = OptimizerKind::kAdagrad, .initial_accumulator = -1};
       }},
      {"initial_accumulator is nan",
       [nan](JobSpec& s) {
         s.optimizer = {.kind = OptimizerKind::kAdagrad, .initial_accumulator = nan};
       }},
  });
}

TEST(ValidateJobSpecTest, RefusesBadUpdateModes) {
  ExpectRefused({
      {"update_mode 0", [](JobSpec& s) { s.update_mode = UpdateMode(0); }},
      {"update_mode 4", [](JobSpec& s) { s.update_mode = UpdateMode(4); }},
      {"clip_scope 0", [](JobSpec& s) { s.clip_scope = ClipScope(0); }},
      {"clip_scope 5", [](JobSpec& s) { s.clip_scope = ClipScope(5); }},
      {"held_dtype is float16",
       [](JobSpec& s) { s.update_mode = UpdateMode::kDeferred, s.held_dtype = DType::kFloat16; }},
      {"held_dtype bfloat16 without held sums",
       [](JobSpec& s) { s.held_dtype = DType::kBFloat16; }},
      {"clip_scope global needs the norm", [](JobSpec& s) { s.clip_scope = ClipScope::kGlobal; }},
      {"set keep_undo_state, or choose deferred",
       [](JobSpec& s) {
         s.update_mode = UpdateMode::kSpeculative, s.keep_undo_state = false;
         s.on_non_finite = NonFinitePolicy::kFail;
       }},
      {"clip_scope layer takes up to 32768 layers",
       [](JobSpec& s) {
         s.update_mode = UpdateMode::kDeferred, s.clip_scope = ClipScope::kLayer;
         for (uint32_t i = 0; i < kLayerUnitsMax; ++i) {
           const std::string name = std::to_string(i);
           s.layers.push_back({"l" + name, 64, {{"t" + name, {64}, 0, 0, true}}});
         }
       }},
  });
}

TEST(ValidateJobSpecTest, RefusesBadLossScaling) {
  const auto deferred = [](double initial, double growth = 2, double backoff = 0.5) {
    return [=](JobSpec& s) {
      s.update_mode = UpdateMode::kDeferred;
      s.loss_scaling = {initial, growth, backoff, 10};
    };
  };
  const double nan = std::nan("");
  ExpectRefused({
      {"initial_scale is -1", deferred(-1)},
      {"initial_scale is nan", deferred(nan)},
      {"initial_scale is 1e+39", deferred(1e39)},
      {"initial_scale is 1e-39", deferred(1e-39)},
      {"growth_factor is 0.5", deferred(8, 0.5)},
      {"growth_factor is nan", deferred(8, nan)},
      {"growth_factor is 65537", deferred(8, 65537)},
      {"backoff_factor is 0;", deferred(8, 2, 0)},
      {"backoff_factor is 1.5", deferred(8, 2, 1.5)},
      {"backoff_factor is nan", deferred(8, 2, nan)},
      {"choose update_mode deferred", [](JobSpec& s) { s.loss_scaling.initial_scale = 8; }},
      {"set on_non_finite to skip",
       [](JobSpec& s) {
         s.update_mode = UpdateMode::kDeferred;
         s.loss_scaling.initial_scale = 8;
         s.on_non_finite = NonFinitePolicy::kFail;
       }},
  });
  JobSpec spec = GoodSpec();
  deferred(65536)(spec);
  EXPECT_TRUE(ValidateJobSpec(spec).ok()) << ToString(ValidateJobSpec(spec));
  spec.loss_scaling = {0, 7e9, -1, 0};
  EXPECT_TRUE(ValidateJobSpec(spec).ok()) << "without a scale the rest means nothing";
}

// Every combination of optimizer, formats, mode, policy and undo: which are refused follows from
// five sentences.
TEST(ValidateJobSpecTest, TheTableOfCombinations) {
  uint32_t accepted = 0;
  uint32_t refused = 0;
  for (uint32_t code = 0; code < 5 * 2 * 2 * 3 * 2 * 3 * 3 * 2 * 4 * 2 * 2; ++code) {
    uint32_t rest = code;
    const auto draw = [&rest](uint32_t below) {
      const uint32_t value = rest % below;
      rest /= below;
      return value;
    };
    JobSpec s = GoodSpec();
    s.optimizer.kind = OptimizerKind(1 + draw(5));
    s.optimizer.sgd_momentum = draw(2) == 1;
    s.optimizer.amsgrad = draw(2) == 1;
    s.optimizer.state_precision = StatePrecision(1 + draw(3));
    s.optimizer.master_format = MasterFormat(1 + draw(2));
    s.served_dtype = DType(1 + draw(3));
    s.update_mode = UpdateMode(1 + draw(3));
    s.held_dtype = DType(1 + draw(2));
    s.clip_scope = ClipScope(1 + draw(4));
    s.keep_undo_state = draw(2) == 1;
    s.on_non_finite = NonFinitePolicy(1 + draw(2));
    const bool adam =
        s.optimizer.kind == OptimizerKind::kAdam || s.optimizer.kind == OptimizerKind::kAdamW;
    const bool deferred = s.update_mode == UpdateMode::kDeferred;
    const bool immediate = s.update_mode == UpdateMode::kImmediate;
    const bool eight = s.optimizer.state_precision == StatePrecision::kBlockwise8;
    const bool options_fit =
        (!s.optimizer.sgd_momentum || s.optimizer.kind == OptimizerKind::kSgd) &&
        (!s.optimizer.amsgrad || (adam && !eight));
    const bool split_fits =
        s.optimizer.master_format == MasterFormat::kFloat32 || s.served_dtype == DType::kBFloat16;
    const bool held_fits =
        !immediate || (s.clip_scope == ClipScope::kNone && s.held_dtype == DType::kFloat32);
    const bool undo_fits = s.keep_undo_state || s.update_mode != UpdateMode::kSpeculative;
    const bool skip_fits =
        s.keep_undo_state || deferred || s.on_non_finite == NonFinitePolicy::kFail;
    const bool wanted = options_fit && split_fits && held_fits && undo_fits && skip_fits;
    const Status status = ValidateJobSpec(s);
    ASSERT_EQ(status.ok(), wanted) << ToString(status);
    ++(wanted ? accepted : refused);
    if (!wanted) {
      ASSERT_EQ(CodeOf(status), ErrorCode::kInvalidArgument);
      continue;
    }
    EXPECT_EQ(HoldsSums(s), !immediate);
    EXPECT_EQ(KeepsUndoState(s), s.keep_undo_state && !deferred);
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(ValidateJobSpecTest, RefusesBadLayers) {
  ExpectRefused({
      {"number of layers is 0", [](JobSpec& s) { s.layers.clear(); }},
      {"layer 1 'embed': another layer", [](JobSpec& s) { s.layers[1].name = "embed"; }},
      {"layer 1: its name has 0", [](JobSpec& s) { s.layers[1].name.clear(); }},
      {"byte 0x0a", [](JobSpec& s) { s.layers[1].name = "a\nb"; }},
      {"byte 0xc3", [](JobSpec& s) { s.layers[1].name = "\xc3\xa4"; }},
      {"layer 1 'h.0' has no elements", [](JobSpec& s) { s.layers[1].elements = 0; }},
      {"layer 1 'h.0' has no tensors", [](JobSpec& s) { s.layers[1].tensors.clear(); }},
      {"layer 0 'embed': with its", [](JobSpec& s) { s.layers[0].elements = kElementsMax + 1; }},
      {"layer 1 'h.0': with its", [](JobSpec& s) { s.layers[0].elements = kElementsMax; }},
      {"layer 1 'h.0': with its", [](JobSpec& s) { s.layers[1].elements = ~uint64_t{0}; }},
      {"raise shard_elements",
       [](JobSpec& s) { s.shard_elements = 64, s.layers[0].elements = uint64_t{1} << 40; }},
  });
}

TEST(ValidateJobSpecTest, RefusesBadTensors) {
  ExpectRefused({
      {"tensor 1 of layer 'h.0': its name", [](JobSpec& s) { s.layers[1].tensors[1].name = ""; }},
      {"tensor 'h.0.w' of layer 'h.0': another tensor",
       [](JobSpec& s) { s.layers[1].tensors[1].name = "h.0.w"; }},
      {"tensor 'wte' of layer 'h.0': another tensor",  // unique in the job, not only in the layer
       [](JobSpec& s) { s.layers[1].tensors[0].name = "wte"; }},
      {"tensor 'wte': shape [10, 0] has a zero",
       [](JobSpec& s) {
         s.layers[0].tensors[0].shape = {10, 0};
       }},
      {"does not fit in 64 bits",
       [](JobSpec& s) {
         s.layers[0].tensors[0].shape = {uint64_t{1} << 32, uint64_t{1} << 32};
       }},
      {"'h.0.b' of layer 'h.0': it starts at element 63, before element 64 where 'h.0.w' ends",
       [](JobSpec& s) { s.layers[1].tensors[1].offset = 63; }},
      {"'h.0.w' of layer 'h.0': it starts at element 0, before element 72",
       [](JobSpec& s) { std::swap(s.layers[1].tensors[0], s.layers[1].tensors[1]); }},
      {"'h.0.scale' of layer 'h.0': elements [80, +1) lie outside the layer's 80",
       [](JobSpec& s) { s.layers[1].tensors[2].offset = 80; }},
      {"lie outside", [](JobSpec& s) { s.layers[1].tensors[2].offset = ~uint64_t{0}; }},
      {"lie outside", [](JobSpec& s) { s.layers[0].elements = 99; }},
      {"'wte' of layer 'embed': group 2 does not exist",
       [](JobSpec& s) { s.layers[0].tensors[0].group = 2; }},
  });
}

TEST(ValidateJobSpecTest, TakesAHundredThousandLayers) {
  JobSpec spec = GoodSpec();
  spec.layers.clear();
  for (int i = 0; i < 100000; ++i) {
    const std::string name = std::to_string(i);
    spec.layers.push_back({"l" + name, 64, {{"t" + name, {64}, 0, 0, true}}});
  }
  EXPECT_TRUE(ValidateJobSpec(spec).ok());
  spec.layers.back().name = "l0";
  EXPECT_FALSE(ValidateJobSpec(spec).ok());
}

TEST(TensorElementsTest, MultipliesTheShape) {
  EXPECT_EQ(*TensorElements({"scalar", {}}), 1u);
  EXPECT_EQ(*TensorElements({"t", {3, 5, 7}}), 105u);
  EXPECT_EQ(*TensorElements({"t", {~uint64_t{0}, 1}}), ~uint64_t{0});
  EXPECT_FALSE(TensorElements({"t", {0}}).ok());
  EXPECT_FALSE(TensorElements({"t", {~uint64_t{0}, 2}}).ok());
}

// One change to each field that a spec has.
std::vector<std::pair<std::string, std::function<void(JobSpec&)>>> EveryChange() {
  return {
      {"name: 'run-2' here, 'run-1' in the job", [](JobSpec& s) { s.name = "run-2"; }},
      {"world_size: 3 here, 2 in", [](JobSpec& s) { s.world_size = 3; }},
      {"groups: 5 here", [](JobSpec& s) { s.groups = 5; }},
      {"optimizer: sgd here, adamw in", [](JobSpec& s) { s.optimizer.kind = OptimizerKind::kSgd; }},
      {"sgd_momentum: yes here", [](JobSpec& s) { s.optimizer.sgd_momentum = true; }},
      {"served_dtype: float32 here", [](JobSpec& s) { s.served_dtype = DType::kFloat32; }},
      {"gradient_dtype: float16 here", [](JobSpec& s) { s.gradient_dtype = DType::kFloat16; }},
      {"reduction: sum here", [](JobSpec& s) { s.reduction = Reduction::kSum; }},
      {"on_non_finite: fail", [](JobSpec& s) { s.on_non_finite = NonFinitePolicy::kFail; }},
      {"keep_undo_state: no", [](JobSpec& s) { s.keep_undo_state = false; }},
      {"amsgrad: yes here, no in", [](JobSpec& s) { s.optimizer.amsgrad = true; }},
      {"state_precision: blockwise8 here, float32 in",
       [](JobSpec& s) { s.optimizer.state_precision = StatePrecision::kBlockwise8; }},
      {"master_format: split here, float32 in",
       [](JobSpec& s) { s.optimizer.master_format = MasterFormat::kSplit; }},
      {"rounding_seed: 7 here, 0 in", [](JobSpec& s) { s.optimizer.rounding_seed = 7; }},
      {"initial_accumulator: 0.5 here", [](JobSpec& s) { s.optimizer.initial_accumulator = 0.5; }},
      {"update_mode: deferred here, immediate in",
       [](JobSpec& s) { s.update_mode = UpdateMode::kDeferred; }},
      {"held_dtype: bfloat16 here, float32 in",
       [](JobSpec& s) { s.held_dtype = DType::kBFloat16; }},
      {"clip_scope: layer here, none in", [](JobSpec& s) { s.clip_scope = ClipScope::kLayer; }},
      {"loss_scaling.initial_scale: 8 here, 0 in",
       [](JobSpec& s) { s.loss_scaling.initial_scale = 8; }},
      {"loss_scaling.growth_factor: 3 here, 2 in",
       [](JobSpec& s) { s.loss_scaling.growth_factor = 3; }},
      {"loss_scaling.backoff_factor: 0.25 here, 0.5 in",
       [](JobSpec& s) { s.loss_scaling.backoff_factor = 0.25; }},
      {"loss_scaling.growth_interval: 5 here, 2000 in",
       [](JobSpec& s) { s.loss_scaling.growth_interval = 5; }},
      {"shard_elements: 64 here", [](JobSpec& s) { s.shard_elements = 64; }},
      {"slots_per_worker: 3 here", [](JobSpec& s) { s.slots_per_worker = 3; }},
      {"accumulates: yes here", [](JobSpec& s) { s.accumulates = true; }},
      {"overflow_bytes: 1 here", [](JobSpec& s) { s.overflow_bytes = 1; }},
      {"number of layers: 1 here, 2 in", [](JobSpec& s) { s.layers.pop_back(); }},
      {"layer 0 'x': name: 'x' here, 'embed'", [](JobSpec& s) { s.layers[0].name = "x"; }},
      {"layer 0 'embed': elements: 104 here, 100 in",
       [](JobSpec& s) { s.layers[0].elements = 104; }},
      {"layer 1 'h.0': number of tensors: 2", [](JobSpec& s) { s.layers[1].tensors.pop_back(); }},
      {"layer 1 'h.0', tensor 1 'y': name", [](JobSpec& s) { s.layers[1].tensors[1].name = "y"; }},
      {"tensor 0 'wte': shape: [100] here, [10, 10] in",
       [](JobSpec& s) { s.layers[0].tensors[0].shape = {100}; }},
      {"tensor 1 'h.0.b': offset: 65", [](JobSpec& s) { s.layers[1].tensors[1].offset = 65; }},
      {"tensor 1 'h.0.b': group: 0", [](JobSpec& s) { s.layers[1].tensors[1].group = 0; }},
      {"tensor 2 'h.0.scale': trainable: yes here, no in",
       [](JobSpec& s) { s.layers[1].tensors[2].trainable = true; }},
  };
}

TEST(JobSpecDifferenceTest, NamesTheFirstDifference) {
  EXPECT_EQ(DescribeDifference(GoodSpec(), GoodSpec()), "");
  for (const auto& [wanted, change] : EveryChange()) {
    JobSpec here = GoodSpec();
    change(here);
    const std::string text = DescribeDifference(here, GoodSpec());
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << " in: " << text;
  }
}

TEST(JobSpecFingerprintTest, EveryFieldCounts) {
  std::set<uint64_t> seen = {FingerprintOf(GoodSpec())};
  size_t variants = 1;
  for (const auto& [wanted, change] : EveryChange()) {
    JobSpec spec = GoodSpec();
    change(spec);
    seen.insert(FingerprintOf(spec));
    ++variants;
  }
  EXPECT_EQ(seen.size(), variants);
  EXPECT_EQ(FingerprintOf(GoodSpec()), FingerprintOf(GoodSpec()));
}

TEST(JobSpecFingerprintTest, TextCannotMoveBetweenNeighbouringFields) {
  JobSpec a = GoodSpec();
  JobSpec b = GoodSpec();
  a.layers[0].tensors[0].shape = {2, 50};
  b.layers[0].tensors[0].shape = {2, 50, 1};
  EXPECT_NE(FingerprintOf(a), FingerprintOf(b));
}

// Daemons and clients of different builds compare these numbers: the encoding must not drift.
TEST(JobSpecFingerprintTest, GoldenValue) {
  EXPECT_EQ(FingerprintOf(GoodSpec()), 2010193218561442193ull);
}

}  // namespace
}  // namespace luwu
