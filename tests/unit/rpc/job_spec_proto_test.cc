// A spec survives the way over the wire field by field, and unknown enum values are refused.
#include "common/rpc/job_spec_proto.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace luwu::rpc {
namespace {

// No field has its default, so that a field that is not carried over makes a difference.
JobSpec FullSpec() {
  JobSpec spec;
  spec.name = "gpt.small";
  spec.world_size = 3;
  spec.layers = {
      {.name = "wte",
       .elements = 640,
       .tensors =
           {{.name = "wte.weight", .shape = {64, 8}, .offset = 0, .group = 1, .trainable = true},
            {.name = "scale", .shape = {}, .offset = 600, .group = 2, .trainable = false}}},
      {.name = "head",
       .elements = uint64_t{1} << 40,
       .tensors =
           {{.name = "head.weight", .shape = {7}, .offset = 64, .group = 0, .trainable = true}}},
  };
  spec.groups = 3;
  spec.optimizer = {.kind = OptimizerKind::kSgd,
                    .sgd_momentum = true,
                    .amsgrad = true,
                    .state_precision = StatePrecision::kBlockwise8,
                    .master_format = MasterFormat::kSplit,
                    .rounding_seed = ~uint64_t{0},
                    .initial_accumulator = 0.1};
  spec.served_dtype = DType::kFloat16;
  spec.gradient_dtype = DType::kFloat32;
  spec.reduction = Reduction::kSum;
  spec.on_non_finite = NonFinitePolicy::kFail;
  spec.keep_undo_state = false;
  spec.shard_elements = 4096;
  spec.slots_per_worker = 5;
  spec.overflow_bytes = 12345;
  spec.accumulates = true;
  spec.update_mode = UpdateMode::kSpeculative;
  spec.held_dtype = DType::kBFloat16;
  spec.clip_scope = ClipScope::kLayer;
  spec.loss_scaling = {65536, 1.5, 0.75, 17};
  return spec;
}

// Through bytes, as over the wire.
StatusOr<JobSpec> OverTheWire(const JobSpec& spec) {
  v1::JobSpec parsed;
  EXPECT_TRUE(parsed.ParseFromString(ToProto(spec).SerializeAsString()));
  return FromProto(parsed);
}

TEST(JobSpecProto, EveryFieldArrives) {
  const JobSpec spec = FullSpec();
  const StatusOr<JobSpec> got = OverTheWire(spec);
  ASSERT_TRUE(got.ok()) << ToString(got.status());
  EXPECT_EQ(*got, spec) << DescribeDifference(*got, spec);
}

TEST(JobSpecProto, EveryKnownEnumValueArrives) {
  for (const DType dtype :
       {DType::kUnspecified, DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    JobSpec spec = FullSpec();
    spec.served_dtype = dtype;
    spec.gradient_dtype = dtype;
    EXPECT_EQ(OverTheWire(spec)->served_dtype, dtype);
    EXPECT_EQ(OverTheWire(spec)->gradient_dtype, dtype);
  }
  for (uint8_t value = 0; value <= 5; ++value) {
    JobSpec spec = FullSpec();
    spec.optimizer.kind = OptimizerKind(value);
    spec.optimizer.state_precision = StatePrecision(std::min<uint8_t>(value, 3));
    spec.optimizer.master_format = MasterFormat(std::min<uint8_t>(value, 2));
    spec.update_mode = UpdateMode(std::min<uint8_t>(value, 3));
    spec.clip_scope = ClipScope(std::min<uint8_t>(value, 4));
    EXPECT_EQ(*OverTheWire(spec), spec);
  }
  for (const Reduction reduction : {Reduction::kUnspecified, Reduction::kSum, Reduction::kMean}) {
    JobSpec spec = FullSpec();
    spec.reduction = reduction;
    EXPECT_EQ(OverTheWire(spec)->reduction, reduction);
  }
  for (const NonFinitePolicy policy :
       {NonFinitePolicy::kUnspecified, NonFinitePolicy::kSkip, NonFinitePolicy::kFail}) {
    JobSpec spec = FullSpec();
    spec.on_non_finite = policy;
    EXPECT_EQ(OverTheWire(spec)->on_non_finite, policy);
  }
}

TEST(JobSpecProto, UnknownEnumValuesAreRefusedByFieldAndNumber) {
  struct Case {
    const char* field;
    std::function<void(v1::JobSpec*)> spoil;
    ErrorCode code;
  };
  const Case cases[] = {
      {"served_dtype", [](v1::JobSpec* s) { s->set_served_dtype(static_cast<v1::DType>(77)); },
       ErrorCode::kUnsupported},
      {"gradient_dtype", [](v1::JobSpec* s) { s->set_gradient_dtype(static_cast<v1::DType>(77)); },
       ErrorCode::kUnsupported},
      {"optimizer.kind",
       [](v1::JobSpec* s) { s->mutable_optimizer()->set_kind(static_cast<v1::OptimizerKind>(77)); },
       ErrorCode::kInvalidArgument},
      {"reduction", [](v1::JobSpec* s) { s->set_reduction(static_cast<v1::Reduction>(77)); },
       ErrorCode::kInvalidArgument},
      {"on_non_finite",
       [](v1::JobSpec* s) { s->set_on_non_finite(static_cast<v1::NonFinitePolicy>(77)); },
       ErrorCode::kInvalidArgument},
      {"held_dtype", [](v1::JobSpec* s) { s->set_held_dtype(static_cast<v1::DType>(77)); },
       ErrorCode::kUnsupported},
      {"optimizer.state_precision",
       [](v1::JobSpec* s) {
         s->mutable_optimizer()->set_state_precision(static_cast<v1::StatePrecision>(77));
       },
       ErrorCode::kInvalidArgument},
      {"optimizer.master_format",
       [](v1::JobSpec* s) {
         s->mutable_optimizer()->set_master_format(static_cast<v1::MasterFormat>(77));
       },
       ErrorCode::kInvalidArgument},
      {"update_mode", [](v1::JobSpec* s) { s->set_update_mode(static_cast<v1::UpdateMode>(77)); },
       ErrorCode::kInvalidArgument},
      {"clip_scope", [](v1::JobSpec* s) { s->set_clip_scope(static_cast<v1::ClipScope>(77)); },
       ErrorCode::kInvalidArgument},
      // A value that would be a valid one if it were cut to the C++ enum's 8 bits.
      {"reduction", [](v1::JobSpec* s) { s->set_reduction(static_cast<v1::Reduction>(258)); },
       ErrorCode::kInvalidArgument},
  };
  for (const Case& c : cases) {
    v1::JobSpec proto = ToProto(FullSpec());
    c.spoil(&proto);
    const StatusOr<JobSpec> got = FromProto(proto);
    ASSERT_FALSE(got.ok()) << c.field;
    EXPECT_EQ(CodeOf(got.status()), c.code) << c.field;
    EXPECT_NE(MessageOf(got.status()).find(c.field), std::string::npos) << ToString(got.status());
    EXPECT_TRUE(MessageOf(got.status()).find("77") != std::string::npos ||
                MessageOf(got.status()).find("258") != std::string::npos);
  }
}

TEST(HyperParametersProto, EveryFieldArrivesExactly) {
  const HyperParameters values = {.lr = 0.1,
                                  .weight_decay = 1e-300,
                                  .beta1 = 0.9,
                                  .beta2 = 1.0 / 3,
                                  .eps = std::numeric_limits<double>::denorm_min(),
                                  .momentum = 0.25,
                                  .dampening = -0.0,
                                  .nesterov = true,
                                  .lr_decay = 0.125,
                                  .max_norm = 3};
  v1::HyperParameters parsed;
  ASSERT_TRUE(parsed.ParseFromString(ToProto(values).SerializeAsString()));
  EXPECT_EQ(FromProto(parsed), values);
}

TEST(NodeProto, EveryFieldArrives) {
  const Node node = {.name = "n1",
                     .weight = 17,
                     .control_address = "h:1",
                     .data_address = "h:2",
                     .shm_path = "/run/x.sock"};
  EXPECT_EQ(FromProto(ToProto(node)), node);
}

}  // namespace
}  // namespace luwu::rpc
