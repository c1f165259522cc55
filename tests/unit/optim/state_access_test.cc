// State that is read as fp32 and written into other memory is the same state, byte for byte, in
// every format: what exports with optimizer state rest on.
#include <gtest/gtest.h>

#include "server/optim/registry.h"
#include "tests/unit/optim/format_oracle.h"

namespace luwu::optim::testing {
namespace {

constexpr uint64_t kShardElement = 1'000'003;

template <typename Use>
void ForBlocks(const FormatShard& shard, const Use& use) {
  uint64_t begin = 0;
  for (uint32_t segment = 0; segment < shard.segment_ends.size(); ++segment) {
    for (const uint64_t end = shard.segment_ends[segment]; begin < end;) {
      const uint64_t next = std::min(end, (begin / kQuantBlock + 1) * kQuantBlock);
      use(begin, next - begin, segment);
      begin = next;
    }
  }
}

StateRange RangeOf(FormatShard& shard, uint64_t first, uint64_t count, uint32_t segment) {
  return {first, count, shard.elements, segment, shard.pointers(), shard.served.data()};
}

FormatShard FreshShard(const OptimizerSpec& spec) {
  FormatShard shard = MakeShard(spec, DType::kBFloat16, {301, 64, 700});
  Random random(7);
  std::vector<float> masters(shard.elements);
  for (float& master : masters) master = random.Weight();
  ForBlocks(shard, [&](uint64_t first, uint64_t count, uint32_t segment) {
    const StateRange range = RangeOf(shard, first, count, segment);
    WriteMasters(spec, range, masters.data() + first);
    InitialState(spec, range);
  });
  return shard;
}

void Update(uint64_t applied, FormatShard* shard) {
  const Setting setting = {NameOf(shard->optimizer), shard->optimizer, HyperOf(shard->optimizer)};
  const RoundingKey key = MakeRoundingKey(shard->optimizer.rounding_seed, applied, kShardElement);
  Random random(applied);
  std::vector<float> gradients(shard->elements);
  for (float& gradient : gradients) gradient = random.Gradient();
  // A whole block without gradients, and signed zeros.
  std::fill(gradients.begin() + 512, gradients.begin() + 800, -0.0f);
  ForBlocks(*shard, [&](uint64_t first, uint64_t count, uint32_t segment) {
    const auto block = std::span(gradients).subspan(first, count);
    OracleBlock({setting, applied, key, segment, first, block}, shard);
  });
}

// Through fp32 into memory that had something else in it; masters need no whole blocks.
FormatShard Copy(FormatShard* from) {
  FormatShard to = MakeShard(from->optimizer, from->served_dtype, {301, 64, 700});
  to.served.assign(to.served.size(), std::byte{0x5a});
  for (uint32_t array = 0; array < to.layout().count; ++array) {
    ForBlocks(to, [&](uint64_t first, uint64_t count, uint32_t segment) {
      std::vector<float> values(count);
      ReadState(from->optimizer, RangeOf(*from, first, count, segment), array, values.data());
      WriteState(to.optimizer, RangeOf(to, first, count, segment), array, values.data());
    });
  }
  if (from->optimizer.master_format != MasterFormat::kSplit) to.served = from->served;
  return to;
}

void ExpectEqual(const FormatShard& a, const FormatShard& b) {
  for (uint32_t array = 0; array < a.layout().count; ++array) {
    EXPECT_EQ(a.arrays[array], b.arrays[array]) << "array " << array;
  }
  EXPECT_EQ(a.served, b.served);
}

TEST(StateAccess, WhatWasReadIsWrittenAsItWasInEveryFormat) {
  uint32_t tried = 0;
  for (const OptimizerSpec& spec : AllOptimizerSpecs()) {
    if (!ValidateOptimizerSpec(spec).ok()) continue;
    SCOPED_TRACE(NameOf(spec));
    FormatShard shard = FreshShard(spec);
    for (uint64_t applied = 0; applied < 4; ++applied) {
      Update(applied, &shard);
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(Copy(&shard), shard));
    }
    ++tried;
  }
  EXPECT_EQ(tried, 50u);
}

TEST(StateAccess, StateBeforeTheFirstUpdateGoesOnAsItWouldHave) {
  for (const OptimizerSpec& spec : AllOptimizerSpecs()) {
    if (!ValidateOptimizerSpec(spec).ok()) continue;
    SCOPED_TRACE(NameOf(spec));
    FormatShard shard = FreshShard(spec);
    FormatShard copy = Copy(&shard);
    Update(0, &shard);
    Update(0, &copy);
    ASSERT_NO_FATAL_FAILURE(ExpectEqual(copy, shard));
  }
}

TEST(StateAccess, ValuesThatEightBitsDoNotHaveBecomeTheNearest) {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdamW;
  spec.state_precision = StatePrecision::kBlockwise8;
  FormatShard shard = MakeShard(spec, DType::kBFloat16, {4});
  const StateRange range = RangeOf(shard, 0, 4, 0);
  std::vector<float> read(4);
  // Shares have 3 bits behind the point: near 1 they lie 1/16 apart.
  WriteState(spec, range, 1, std::vector<float>{-2, 1.9f, 1.8f, 0}.data());
  ReadState(spec, range, 1, read.data());
  EXPECT_EQ(read, (std::vector<float>{-2, 1.875f, 1.75f, 0}));
  // A second moment that is not 0 stays a divisor.
  WriteState(spec, range, 2, std::vector<float>{1, 1e-30f, 0, 0.5f}.data());
  ReadState(spec, range, 2, read.data());
  EXPECT_EQ(read, (std::vector<float>{1, 0x1p-33f, 0, 0.5f}));
}

}  // namespace
}  // namespace luwu::optim::testing
