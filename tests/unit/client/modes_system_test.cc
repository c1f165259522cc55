// Clipping, loss scaling and the state formats through luwu.hpp: numbers that can be worked out by
// hand. Against torch: tests/exactness.
#include <cmath>

#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

constexpr uint32_t kLayers = 5;  // of SmallJob, that train

class Modes : public ::testing::TestWithParam<luwu_update_mode> {
 protected:
  Modes() {
    job_.optimizer = LUWU_SGD;
    job_.update_mode = GetParam();
  }

  cxx::Session OpenZero() {
    cxx::Session session({.endpoints = daemons_.endpoints(), .job = job_});
    for (uint32_t layer = 0; layer < job_.layers.size(); ++layer) {
      const std::vector<float> zeros(ElementsOf(job_.layers[layer]));
      session.load({layer, 0}, zeros.data(), zeros.size());
    }
    session.finish_load();
    return session;
  }

  // Every trainable element gets `gradient`.
  luwu_commit_result Step(cxx::Session& session, uint64_t step, const luwu_hyper& group,
                          float gradient) {
    session.begin_step(step, {group});
    std::vector<float> values(1000, gradient);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      session.push(layer, {cxx::segment(values.data(), ElementsOf(job_.layers[layer]))},
                   LUWU_PUSH_CLOSE);
    }
    return session.commit(step);
  }

  std::vector<float> Read(cxx::Session& session, luwu_quantity quantity = LUWU_MASTER) {
    std::vector<float> values(65);
    session.read({2, 0}, quantity, values.data(), values.size());
    return values;
  }

  const DaemonCluster daemons_{LUWU_LUWUD, {.nodes = 2}};
  cxx::JobSpec job_ = SmallJob(1);
};

// Of layers below, at, above, many (without its frozen tensor) and gap (without its gap).
constexpr double kTrainable = 63 + 64 + 65 + 577 + 70;

TEST_P(Modes, CommitTellsTheNormAndTheFactor) {
  job_.clip_scope = LUWU_CLIP_GLOBAL;
  cxx::Session session = OpenZero();
  luwu_hyper group = cxx::sgd(1.0);
  group.max_norm = 0.5;
  const luwu_commit_result clipped = Step(session, 0, group, 2.0f);
  const double norm = 2 * std::sqrt(kTrainable);
  EXPECT_DOUBLE_EQ(clipped.grad_norm, norm);
  EXPECT_DOUBLE_EQ(clipped.clip_factor, 0.5 / (norm + 1e-6));
  const float expected = -2.0f * static_cast<float>(0.5 / (norm + 1e-6));
  EXPECT_EQ(Read(session), std::vector<float>(65, expected));

  group.max_norm = 0;
  const luwu_commit_result free = Step(session, 1, group, 2.0f);
  EXPECT_DOUBLE_EQ(free.grad_norm, norm);
  EXPECT_EQ(free.clip_factor, 1);
  EXPECT_EQ(free.loss_scale, 1);
}

TEST_P(Modes, LossScaleIsToldBeforeTheStepAndWithTheCommit) {
  job_.loss_scaling = {.initial = 8, .growth_interval = 2};
  cxx::Session session = OpenZero();
  const luwu_hyper group = cxx::sgd(1.0);
  EXPECT_EQ(session.info().loss_scale, 8);
  const luwu_commit_result skipped = Step(session, 0, group, __builtin_inff());
  EXPECT_EQ(skipped.outcome, LUWU_SKIPPED);
  EXPECT_TRUE(std::isnan(skipped.grad_norm));
  EXPECT_EQ(skipped.loss_scale, 4);
  EXPECT_EQ(session.info().loss_scale, 4);
  EXPECT_EQ(Step(session, 1, group, 4.0f).loss_scale, 4);
  EXPECT_EQ(Step(session, 2, group, 4.0f).loss_scale, 8);
  EXPECT_EQ(Read(session), std::vector<float>(65, -2.0f));
}

TEST_P(Modes, NormLimitsAreCheckedBeforeAnythingIsSent) {
  cxx::Session session = OpenZero();
  luwu_hyper group = cxx::sgd(1.0);
  group.max_norm = 1;
  EXPECT_EQ(luwu_begin_step(session.handle(), 0, &group, 1, 1000), LUWU_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(luwu_last_error()).find("clip_scope"), std::string::npos);
}

TEST_P(Modes, ThirdMomentIsTheMaximumOfAmsgrad) {
  job_.optimizer = LUWU_ADAM;
  job_.amsgrad = true;
  cxx::Session session = OpenZero();
  Step(session, 0, cxx::adam(1e-3), 4.0f);
  const std::vector<float> second = Read(session, LUWU_MOMENT2);
  EXPECT_EQ(Read(session, LUWU_MOMENT3), second);
  Step(session, 1, cxx::adam(1e-3), 0.0f);
  EXPECT_LT(Read(session, LUWU_MOMENT2)[0], second[0]);
  EXPECT_EQ(Read(session, LUWU_MOMENT3), second);
}

INSTANTIATE_TEST_SUITE_P(Updates, Modes,
                         ::testing::Values(LUWU_UPDATE_DEFERRED, LUWU_UPDATE_SPECULATIVE),
                         [](const auto& info) {
                           return info.param == LUWU_UPDATE_DEFERRED ? "deferred" : "speculative";
                         });

TEST(ModesMisuse, MomentsThatAnOptimizerDoesNotHaveAreNamed) {
  const DaemonCluster daemons(LUWU_LUWUD, {});
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session({.endpoints = daemons.endpoints(), .job = job});
  LoadAll(session, job);
  float value = 0;
  EXPECT_EQ(luwu_read(session.handle(), 2, LUWU_MOMENT3, 0, &value, 1, 1000),
            LUWU_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(luwu_last_error()).find("no third moment"), std::string::npos)
      << luwu_last_error();
  EXPECT_EQ(luwu_read(session.handle(), 2, 5, 0, &value, 1, 1000), LUWU_E_INVALID_ARGUMENT)
      << luwu_last_error();  // and the session lives
}

}  // namespace
}  // namespace luwu::testing
