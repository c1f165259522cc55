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
      {"choose adamw or sgd", [](JobSpec& s) { s.optimizer.kind = OptimizerKind::kUnspecified; }},
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
      {"overflow_bytes", [](JobSpec& s) { s.overflow_bytes = ~uint64_t{0}; }},
  });
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

TEST(HyperParametersTest, AdamWRefusesWhatTorchRefuses) {
  const OptimizerSpec adamw = {OptimizerKind::kAdamW, false};
  const HyperParameters good = {
      .lr = 1e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  EXPECT_TRUE(ValidateHyperParameters(adamw, 0, good).ok());
  EXPECT_TRUE(ValidateHyperParameters(adamw, 0, {}).ok()) << "all zero is legal, if useless";
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  struct Case {
    const char* name;
    double HyperParameters::*field;
    std::vector<double> bad;
  };
  const Case cases[] = {
      {"lr", &HyperParameters::lr, {-1, nan, infinity}},
      {"weight_decay", &HyperParameters::weight_decay, {-1, nan, infinity}},
      {"beta1", &HyperParameters::beta1, {-0.1, 1.0, 1.5, nan}},
      {"beta2", &HyperParameters::beta2, {-0.1, 1.0, 1.5, nan}},
      {"eps", &HyperParameters::eps, {-1e-9, nan, infinity}},
  };
  for (const Case& c : cases) {
    for (const double bad : c.bad) {
      HyperParameters values = good;
      values.*c.field = bad;
      const Status status = ValidateHyperParameters(adamw, 3, values);
      EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument) << c.name << bad;
      EXPECT_NE(MessageOf(status).find(std::string("group 3: ") + c.name), std::string::npos)
          << MessageOf(status);
    }
  }
}

TEST(HyperParametersTest, SgdChecksItsMomentum) {
  const OptimizerSpec plain = {OptimizerKind::kSgd, false};
  const OptimizerSpec heavy = {OptimizerKind::kSgd, true};
  EXPECT_TRUE(ValidateHyperParameters(plain, 0, {.lr = 0.1}).ok());
  EXPECT_FALSE(ValidateHyperParameters(plain, 0, {.lr = 0.1, .momentum = 0.9}).ok());
  EXPECT_TRUE(ValidateHyperParameters(heavy, 0, {.lr = 0.1, .momentum = 0.9}).ok());
  EXPECT_TRUE(
      ValidateHyperParameters(heavy, 0, {.lr = 0.1, .momentum = 0.9, .nesterov = true}).ok());
  EXPECT_FALSE(ValidateHyperParameters(heavy, 0, {.lr = 0.1, .momentum = -0.9}).ok());
  EXPECT_FALSE(ValidateHyperParameters(heavy, 0, {.lr = 0.1, .nesterov = true}).ok());
  EXPECT_FALSE(ValidateHyperParameters(
                   heavy, 0, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .nesterov = true})
                   .ok());
  EXPECT_FALSE(ValidateHyperParameters(heavy, 0, {.lr = 0.1, .dampening = std::nan("")}).ok());
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
      {"shard_elements: 64 here", [](JobSpec& s) { s.shard_elements = 64; }},
      {"slots_per_worker: 3 here", [](JobSpec& s) { s.slots_per_worker = 3; }},
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
  EXPECT_EQ(FingerprintOf(GoodSpec()), 15097713141013931848ull);
}

}  // namespace
}  // namespace luwu
