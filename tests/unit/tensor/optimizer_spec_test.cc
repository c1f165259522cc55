// The hyper-parameters of a step: what each optimizer refuses, and what a job's clip scope asks
// for.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "common/tensor/job_spec.h"

namespace luwu {
namespace {

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
      {"lr", &HyperParameters::lr, {-1, nan, infinity, 1e300}},
      {"weight_decay", &HyperParameters::weight_decay, {-1, nan, infinity}},
      {"beta1", &HyperParameters::beta1, {-0.1, 1.0, 1.5, nan}},
      {"beta2", &HyperParameters::beta2, {-0.1, 1.0, 1.5, nan}},
      {"eps", &HyperParameters::eps, {-1e-9, nan, infinity, 3.5e38}},
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

TEST(HyperParametersTest, EachOptimizerChecksItsOwnFields) {
  using H = HyperParameters;
  struct Case {
    OptimizerKind kind;
    double H::*field;
    bool checked;
  };
  const Case cases[] = {
      {OptimizerKind::kAdam, &H::beta2, true},        {OptimizerKind::kAdam, &H::eps, true},
      {OptimizerKind::kAdam, &H::momentum, false},    {OptimizerKind::kLion, &H::beta1, true},
      {OptimizerKind::kLion, &H::beta2, true},        {OptimizerKind::kLion, &H::eps, false},
      {OptimizerKind::kAdagrad, &H::eps, true},       {OptimizerKind::kAdagrad, &H::lr_decay, true},
      {OptimizerKind::kAdagrad, &H::beta1, false},    {OptimizerKind::kSgd, &H::lr_decay, false},
      {OptimizerKind::kSgd, &H::max_norm, true},      {OptimizerKind::kAdagrad, &H::max_norm, true},
      {OptimizerKind::kLion, &H::weight_decay, true},
  };
  for (const Case& c : cases) {
    H values = {.lr = 0.1};
    values.*c.field = -1;
    EXPECT_EQ(ValidateHyperParameters({.kind = c.kind}, 0, values).ok(), !c.checked)
        << OptimizerName(c.kind);
  }
}

TEST(HyperParametersTest, TheSetsOfAStepMustFitTheJob) {
  JobSpec spec;
  spec.name = "run-1";
  spec.groups = 2;
  spec.optimizer.kind = OptimizerKind::kAdamW;
  const HyperParameters plain = {.lr = 0.1};
  const HyperParameters limited = {.lr = 0.1, .max_norm = 1};
  const HyperParameters other = {.lr = 0.1, .max_norm = 2};
  const auto error = [&spec](const std::vector<HyperParameters>& groups) {
    return MessageOf(ValidateStep(spec, groups));
  };
  EXPECT_EQ(error({plain, plain}), "");
  EXPECT_NE(error({plain}).find("hyper-parameters for 1 groups; job 'run-1' has 2"),
            std::string::npos);
  EXPECT_NE(error({plain, {.lr = -1}}).find("group 1: lr"), std::string::npos);
  EXPECT_NE(error({plain, limited})
                .find("group 1: max_norm is 1, but the job was created with "
                      "clip_scope none"),
            std::string::npos);
  spec.update_mode = UpdateMode::kDeferred;
  for (const ClipScope scope : {ClipScope::kGlobal, ClipScope::kLayer}) {
    spec.clip_scope = scope;
    EXPECT_EQ(error({limited, limited}), "");
    EXPECT_NE(error({limited, other}).find("max_norm is 1 in group 0 and 2 in group 1"),
              std::string::npos);
  }
  spec.clip_scope = ClipScope::kGroup;
  EXPECT_EQ(error({limited, other}), "");
}

}  // namespace
}  // namespace luwu
