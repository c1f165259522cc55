// Every optimizer, state precision and master format: either refused with a reason, or equal to the
// scalar oracle in every bit, on every SIMD target, for every gradient and served dtype and for
// lengths with every tail, over several steps.
#include <gtest/gtest.h>

#include "server/optim/registry.h"
#include "tests/unit/optim/format_oracle.h"

namespace luwu::optim::testing {
namespace {

constexpr uint64_t kShardElement = 5'000'000'123;  // job-wide number of a shard's first element

struct Run {
  const OptimizerSpec& optimizer;
  DType gradient_dtype = DType::kBFloat16;
  DType served_dtype = DType::kBFloat16;
  std::vector<uint64_t> segments;
  bool in_place = false;
  size_t workers = 2;
};

// Cuts a segment at multiples of `piece` elements of the shard and calls use(first, count).
template <typename Use>
void ForPieces(uint64_t begin, uint64_t end, uint64_t piece, const Use& use) {
  while (begin < end) {
    const uint64_t next = std::min(end, (begin / piece + 1) * piece);
    use(begin, next - begin);
    begin = next;
  }
}

class Comparison {
 public:
  explicit Comparison(const Run& run)
      : run_(run),
        setting_{NameOf(run.optimizer), run.optimizer, HyperOf(run.optimizer)},
        oracle_(MakeShard(run.optimizer, run.served_dtype, run.segments)) {
    Random random(oracle_.elements);
    std::vector<float> masters(oracle_.elements);
    for (float& master : masters) master = random.Weight();
    ForSegments(1u << 30, [&](uint64_t first, uint64_t count, uint32_t segment) {
      const StateRange range = {
          first, count, oracle_.elements, segment, oracle_.pointers(), oracle_.served.data()};
      WriteMasters(run.optimizer, range, masters.data() + first);
      InitialState(run.optimizer, range);
    });
    product_ = next_ = oracle_;
    for (size_t k = 0; k < run.workers; ++k) {
      gradients_.emplace_back(run.gradient_dtype, oracle_.elements);
    }
  }

  void Step(uint64_t applied) {
    Random random(applied + 100 * oracle_.elements);
    for (GradientBuffer& gradient : gradients_) gradient.Fill(random);
    const float scale = 1.0f / static_cast<float>(run_.workers);
    const RoundingKey key = MakeRoundingKey(run_.optimizer.rounding_seed, applied, kShardElement);
    ForSegments(256, [&](uint64_t first, uint64_t count, uint32_t segment) {
      std::vector<float> sums;
      for (uint64_t i = 0; i < count; ++i) sums.push_back(ScalarSum(gradients_, first + i, scale));
      OracleBlock({setting_, applied, key, segment, first, sums}, &oracle_);
    });
    const FormatShard before = product_;
    FormatShard& target = run_.in_place ? product_ : next_;
    ForSegments(512 * (1 + applied % 3), [&](uint64_t first, uint64_t count, uint32_t segment) {
      Apply(applied, scale, {first, count, segment}, &target);
    });
    for (uint32_t k = 0; k < oracle_.layout().count; ++k) {
      ASSERT_EQ(target.arrays[k], oracle_.arrays[k]) << "array " << k << " step " << applied;
      if (run_.in_place) continue;
      ASSERT_EQ(product_.arrays[k], before.arrays[k]) << "input changed";
    }
    ASSERT_EQ(target.served, oracle_.served) << "step " << applied;
    if (!run_.in_place) std::swap(product_, next_);
  }

 private:
  struct Piece {
    uint64_t first, count;
    uint32_t segment;
  };

  template <typename Use>
  void ForSegments(uint64_t piece, const Use& use) {
    uint64_t begin = 0;
    for (uint32_t segment = 0; segment < oracle_.segment_ends.size(); ++segment) {
      ForPieces(begin, oracle_.segment_ends[segment], piece,
                [&](uint64_t first, uint64_t count) { use(first, count, segment); });
      begin = oracle_.segment_ends[segment];
    }
  }

  void Apply(uint64_t applied, float scale, const Piece& piece, FormatShard* target) {
    std::vector<GradientSource> sources = SourcesOf(gradients_);
    for (GradientSource& source : sources) source.data += piece.first * DTypeBytes(source.dtype);
    UpdateRange range;
    range.first = piece.first;
    range.count = piece.count;
    range.shard_elements = oracle_.elements;
    range.segment = piece.segment;
    range.job_element = kShardElement + piece.first;
    range.gradients = sources;
    range.gradient_scale = scale;
    range.in = product_.pointers();
    range.out = target->pointers();
    range.served_in = product_.served.data();
    range.served = target->served.data();
    range.served_dtype = run_.served_dtype;
    range.stream_served = applied % 2 == 0;
    ASSERT_EQ(ApplyUpdate(run_.optimizer, setting_.hyper, applied, range).non_finite, kAllFinite);
  }

  const Run run_;
  const Setting setting_;
  FormatShard oracle_, product_, next_;
  std::vector<GradientBuffer> gradients_;
};

void Compare(const Run& run, uint64_t steps) {
  Comparison comparison(run);
  for (uint64_t step = 0; step < steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(comparison.Step(step));
  }
}

std::vector<OptimizerSpec> ValidSpecs() {
  std::vector<OptimizerSpec> valid;
  for (const OptimizerSpec& spec : AllOptimizerSpecs()) {
    if (ValidateOptimizerSpec(spec).ok()) valid.push_back(spec);
  }
  return valid;
}

TEST(Combinations, EachIsRefusedWithAReasonOrHasALayout) {
  uint32_t valid = 0, refused = 0;
  for (const OptimizerSpec& spec : AllOptimizerSpecs()) {
    SCOPED_TRACE(NameOf(spec));
    const Status status = ValidateOptimizerSpec(spec);
    const bool adam = spec.kind == OptimizerKind::kAdam || spec.kind == OptimizerKind::kAdamW;
    const bool expected =
        (!spec.sgd_momentum || spec.kind == OptimizerKind::kSgd) &&
        (!spec.amsgrad || (adam && spec.state_precision != StatePrecision::kBlockwise8)) &&
        (spec.initial_accumulator == 0 || spec.kind == OptimizerKind::kAdagrad);
    EXPECT_EQ(status.ok(), expected) << ToString(status);
    ++(status.ok() ? valid : refused);
    if (!status.ok()) {
      EXPECT_GT(ToString(status).size(), 20u);
      continue;
    }
    ASSERT_NE(FindOptimizer(spec.kind), nullptr);
    const uint32_t moments = adam                               ? (spec.amsgrad ? 3 : 2)
                             : spec.kind == OptimizerKind::kSgd ? spec.sgd_momentum
                                                                : 1;
    EXPECT_EQ(LayoutOf(spec).count, 1 + moments);
  }
  EXPECT_EQ(valid, 50u);
  EXPECT_EQ(valid + refused, 240u);
}

TEST(Combinations, EveryDTypePairEqualsTheOracle) {
  ForEachTarget([&](const std::string& target) {
    for (const OptimizerSpec& spec : ValidSpecs()) {
      SCOPED_TRACE(target + " " + NameOf(spec));
      const bool split = spec.master_format == MasterFormat::kSplit;
      for (const DType gradient : kDTypes) {
        for (const DType served : kDTypes) {
          if (split && served != DType::kBFloat16) continue;
          for (const bool in_place : {false, true}) {
            ASSERT_NO_FATAL_FAILURE(Compare({spec, gradient, served, {301, 64, 700}, in_place}, 2));
          }
        }
      }
    }
  });
}

TEST(Combinations, EveryLengthEqualsTheOracle) {
  ForEachTarget([&](const std::string& target) {
    for (const OptimizerSpec& spec : ValidSpecs()) {
      SCOPED_TRACE(target + " " + NameOf(spec));
      for (uint64_t count = 1; count <= 130; ++count) {
        ASSERT_NO_FATAL_FAILURE(Compare({spec,
                                         DType::kBFloat16,
                                         DType::kBFloat16,
                                         {count, 1 + 7 * count % 300},
                                         count % 2 == 0,
                                         1},
                                        1));
      }
    }
  });
}

TEST(Combinations, ManyStepsAndManyWorkersEqualTheOracle) {
  for (const OptimizerSpec& spec : ValidSpecs()) {
    SCOPED_TRACE(NameOf(spec));
    ASSERT_NO_FATAL_FAILURE(
        Compare({spec, DType::kBFloat16, DType::kBFloat16, {1000, 2345, 1}, false, 9}, 12));
    ASSERT_NO_FATAL_FAILURE(
        Compare({spec, DType::kFloat16, DType::kBFloat16, {2048}, true, 5}, 12));
  }
}

}  // namespace
}  // namespace luwu::optim::testing
