// Going on from exported state: what a job takes while it is loading, and where it stands then.
#include <gtest/gtest.h>

#include <map>

#include "tests/fakes/job_world.h"

namespace luwu {
namespace {

using fakes::JobWorld;

// Shards of 64 and 36 elements.
JobSpec OneLayer() { return fakes::SmallSpec(1, {fakes::Layer("a", 100)}); }

std::vector<float> Values(uint64_t count, float first) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

struct Seen {
  std::vector<float> values;
  uint64_t version = 0;
};
Seen ReadAll(Job& job, Quantity quantity) {
  Seen seen;
  const Status status = job.Read({0, quantity}, TimePoint::max(), [&](const Job::Piece& piece) {
    seen.values.insert(seen.values.end(), piece.values.begin(), piece.values.end());
    seen.version = piece.version;
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return seen;
}

StartPoint Start(uint64_t step) { return {step, 1, 0, {{4, 5}}}; }

TEST(JobImport, StateIsTakenInWholeBlocksOfMomentsOnly) {
  JobWorld world(OneLayer());
  Job& job = world.job();
  const std::vector<float> values = Values(64, 1);
  const std::span<const float> all(values);
  const auto code = [&](const Job::StatePlace& place, uint64_t count) {
    return CodeOf(job.LoadState(place, all.first(count)));
  };
  EXPECT_EQ(code({0, Quantity::kMaster, 0, 0}, 64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment3, 0, 0}, 64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, Quantity::kMoment1, 0, 0}, 64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment1, 2, 0}, 64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment1, 0, 1}, 63), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment1, 0, 0}, 63), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment1, 1, 0}, 64), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, Quantity::kMoment1, 0, ~uint64_t{0}}, 2), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(job.LoadState({0, Quantity::kMoment2, 1, 0}, all.first(36)).ok());
}

TEST(JobImport, AJobStandsWhereItsStateWas) {
  for (const uint64_t step : {6, 7}) {  // either served buffer
    JobWorld world(OneLayer());
    Job& job = world.job();
    std::map<Quantity, std::vector<float>> expected;
    for (const auto& [quantity, first] :
         {std::pair(Quantity::kMaster, 1.0f), std::pair(Quantity::kMoment1, 1000.0f),
          std::pair(Quantity::kMoment2, 2000.0f)}) {
      expected[quantity] = Values(100, first);
      for (const auto& [shard, begin, count] : {std::tuple(0, 0, 64), std::tuple(1, 64, 36)}) {
        const auto part = std::span(expected[quantity]).subspan(begin, count);
        ASSERT_TRUE(quantity == Quantity::kMaster
                        ? job.Load(0, shard, 0, part).ok()
                        : job.LoadState({0, quantity, uint64_t(shard), 0}, part).ok());
      }
    }
    ASSERT_TRUE(job.FinishLoadAt(Start(step)).ok());
    EXPECT_TRUE(job.loaded());
    EXPECT_EQ(job.current_step(), step);
    EXPECT_EQ(job.WhereItStands().step, step);
    EXPECT_EQ(job.WhereItStands().applied, Start(step).applied);
    for (const auto& [quantity, values] : expected) {
      const Seen seen = ReadAll(job, quantity);
      EXPECT_EQ(seen.values, values);
      EXPECT_EQ(seen.version, step);
    }
    EXPECT_EQ(CodeOf(job.LoadState({0, Quantity::kMoment1, 0, 0}, Values(64, 0))),
              ErrorCode::kState);
  }
}

TEST(JobImport, MastersMustBeComplete) {
  JobWorld world(OneLayer());
  ASSERT_TRUE(world.job().Load(0, 0, 0, Values(64, 0)).ok());
  EXPECT_EQ(CodeOf(world.job().FinishLoadAt(Start(3))), ErrorCode::kState);
  EXPECT_FALSE(world.job().loaded());
}

TEST(JobImport, MastersAloneBeginWithFreshMomentsAfterStateThatWasNotFinished) {
  for (const StatePrecision precision : {StatePrecision::kFloat32, StatePrecision::kBlockwise8}) {
    JobSpec spec = OneLayer();
    spec.optimizer.state_precision = precision;
    JobWorld world(spec);
    Job& job = world.job();
    for (const auto& [shard, count] : {std::pair(0, 64), std::pair(1, 36)}) {
      ASSERT_TRUE(
          job.LoadState({0, Quantity::kMoment1, uint64_t(shard), 0}, Values(count, 5)).ok());
      ASSERT_TRUE(
          job.LoadState({0, Quantity::kMoment2, uint64_t(shard), 0}, Values(count, 9)).ok());
      ASSERT_TRUE(job.Load(0, shard, 0, Values(count, 1)).ok());
    }
    ASSERT_TRUE(job.FinishLoad(false).ok());
    EXPECT_EQ(ReadAll(job, Quantity::kMoment1).values, std::vector<float>(100, 0));
    EXPECT_EQ(ReadAll(job, Quantity::kMoment2).values, std::vector<float>(100, 0));
  }
}

TEST(JobImport, APointOfAnotherJobIsRefused) {
  JobWorld world(OneLayer());
  ASSERT_TRUE(world.job().Load(0, 0, 0, Values(64, 0)).ok());
  ASSERT_TRUE(world.job().Load(0, 1, 0, Values(36, 0)).ok());
  for (const auto& applied :
       {std::vector<std::vector<uint64_t>>{}, std::vector<std::vector<uint64_t>>{{1, 2, 3}}}) {
    EXPECT_EQ(CodeOf(world.job().FinishLoadAt({3, 1, 0, applied})), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(world.job().current_step(), 0u);
}

}  // namespace
}  // namespace luwu
