// Stochastic rounding and 8-bit state: unbiased, bounded, reproducible, chosen by seed, update and
// element, and independent of how a shard is cut. The split master loses nothing.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/unit/optim/format_oracle.h"

namespace luwu::optim::testing {
namespace {

// SGD with momentum and without decay: the first update stores the gradient itself as momentum.
// Adagrad's first update stores its square.
OptimizerSpec SpecOf(OptimizerKind kind, StatePrecision precision) {
  return {.kind = kind, .sgd_momentum = kind == OptimizerKind::kSgd, .state_precision = precision};
}

struct Cut {
  uint64_t first = 0, count = 0;
};

// What array 1 holds after one update of a fresh shard with these gradients.
std::vector<float> Stored(OptimizerSpec spec, uint64_t seed, uint64_t applied,
                          const std::vector<float>& gradients, std::vector<Cut> cuts = {},
                          uint64_t shard_element = 0) {
  spec.rounding_seed = seed;
  const uint64_t count = gradients.size();
  FormatShard shard = MakeShard(spec, DType::kBFloat16, {count});
  HyperParameters hyper;
  hyper.lr = 1e-3;
  hyper.eps = 1;
  hyper.momentum = spec.sgd_momentum ? 1 : 0;  // later updates add to a momentum of 0
  if (cuts.empty()) cuts.push_back({0, count});
  for (const Cut& cut : cuts) {
    const GradientSource source = {std::as_bytes(std::span(gradients)).data() + 4 * cut.first,
                                   DType::kFloat32};
    UpdateRange range;
    range.first = cut.first;
    range.count = cut.count;
    range.shard_elements = count;
    range.job_element = shard_element + cut.first;
    range.gradients = {&source, 1};
    range.in = range.out = shard.pointers();
    range.served = shard.served.data();
    range.served_dtype = DType::kBFloat16;
    EXPECT_EQ(ApplyUpdate(spec, hyper, applied, range).non_finite, kAllFinite);
  }
  std::vector<float> values(count);
  ReadState(spec, {0, count, count, 0, shard.pointers(), nullptr}, 1, values.data());
  return values;
}

std::vector<float> RandomGradients(uint64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> gradients(count);
  for (float& gradient : gradients) gradient = random.Gradient();
  return gradients;
}

// The distance between the two codes around a value, as a share of its block's largest.
double Gap8(double share, bool is_signed) {
  const int bias = is_signed ? 15 : 31;
  const int exponent = share == 0 ? -1000 : std::ilogb(share);
  return std::ldexp(1.0, std::max(exponent, 1 - bias) - 3);
}

TEST(StochasticRounding, MeanOverSeedsIsTheValue) {
  constexpr uint64_t kCount = 512, kSeeds = 4000;
  const std::vector<float> gradients = RandomGradients(kCount, 3);
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad}) {
    for (const StatePrecision precision :
         {StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
      const OptimizerSpec spec = SpecOf(kind, precision);
      SCOPED_TRACE(NameOf(spec));
      const bool squares = kind == OptimizerKind::kAdagrad;
      std::vector<double> sums(kCount);
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        const std::vector<float> values = Stored(spec, seed, 1, gradients);
        for (uint64_t i = 0; i < kCount; ++i) sums[i] += values[i];
      }
      double z_sum = 0;
      for (uint64_t i = 0; i < kCount; ++i) {
        const float exact = squares ? gradients[i] * gradients[i] : gradients[i];
        float largest = 0;
        for (uint64_t k = i / 256 * 256; k < i / 256 * 256 + 256; ++k) {
          largest =
              std::max(largest, std::abs(squares ? gradients[k] * gradients[k] : gradients[k]));
        }
        const double step = largest * std::ldexp(1.0, -33);
        if (squares && precision == StatePrecision::kBlockwise8 && exact < step) {
          ASSERT_NEAR(sums[i] / kSeeds / step, exact == 0 ? 0 : 1, 1e-6) << "always up";
          continue;
        }
        const double gap = precision == StatePrecision::kBFloat16
                               ? std::ldexp(1.0, std::ilogb(exact) - 7)
                               : largest * Gap8(std::abs(exact) / largest, !squares);
        // A mean of kSeeds roundings has a deviation of at most gap / 2 / sqrt(kSeeds).
        const double z = (sums[i] / kSeeds - exact) / (gap / 2 / std::sqrt(double(kSeeds)));
        ASSERT_LT(std::abs(z), 5.5) << "element " << i << " of value " << exact;
        z_sum += z;
      }
      EXPECT_LT(std::abs(z_sum) / std::sqrt(double(kCount)), 5) << "a common bias";
    }
  }
}

TEST(StochasticRounding, ErrorIsLessThanOneGap) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad}) {
    const bool squares = kind == OptimizerKind::kAdagrad;
    const OptimizerSpec spec = SpecOf(kind, StatePrecision::kBlockwise8);
    const std::vector<float> gradients = RandomGradients(256 * 64, 9);
    const std::vector<float> values = Stored(spec, 1, 0, gradients);
    for (uint64_t block = 0; block < gradients.size(); block += 256) {
      double largest = 0;
      const auto exact = [&](uint64_t i) {
        return squares ? double(gradients[i] * gradients[i]) : double(gradients[i]);
      };
      for (uint64_t i = block; i < block + 256; ++i)
        largest = std::max(largest, std::abs(exact(i)));
      for (uint64_t i = block; i < block + 256; ++i) {
        const double share = std::abs(exact(i)) / largest;
        ASSERT_LE(std::abs(values[i] - exact(i)), largest * Gap8(share, !squares) * 1.00001) << i;
        ASSERT_TRUE(!squares || exact(i) == 0 || values[i] > 0) << "a second moment vanished";
      }
    }
  }
}

TEST(StochasticRounding, DependsOnSeedUpdateAndShardAndNothingElse) {
  for (const StatePrecision precision : {StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
    const OptimizerSpec spec = SpecOf(OptimizerKind::kSgd, precision);
    const std::vector<float> gradients = RandomGradients(4096, 5);
    const std::vector<float> first = Stored(spec, 1, 1, gradients);
    const auto differ = [&](const std::vector<float>& other) {
      uint64_t count = 0;
      for (uint64_t i = 0; i < first.size(); ++i) count += first[i] != other[i];
      return count;
    };
    EXPECT_EQ(differ(Stored(spec, 1, 1, gradients)), 0u);
    EXPECT_GT(differ(Stored(spec, 2, 1, gradients)), 800u) << "seed";
    EXPECT_GT(differ(Stored(spec, 1, 2, gradients)), 800u) << "update";
    EXPECT_GT(differ(Stored(spec, 1, 1, gradients, {}, uint64_t{1} << 33)), 800u) << "shard";
  }
}

TEST(StochasticRounding, IsTheSameHoweverAShardIsCut) {
  constexpr uint64_t kCount = 16384 * 2 + 777;
  const std::vector<float> gradients = RandomGradients(kCount, 6);
  for (const StatePrecision precision : {StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
    const OptimizerSpec spec = SpecOf(OptimizerKind::kSgd, precision);
    const std::vector<float> whole = Stored(spec, 1, 1, gradients);
    EXPECT_TRUE(
        SameBits(whole, Stored(spec, 1, 1, gradients, {{32768, 777}, {0, 16384}, {16384, 16384}})));
    EXPECT_TRUE(SameBits(whole, Stored(spec, 1, 1, gradients, {{0, 256}, {256, kCount - 256}})));
  }
}

TEST(StochasticRounding, ArraysOfOneElementAreRoundedIndependently) {
  // Equal values in two arrays of AMSGrad would fall alike if they shared their bits.
  const RoundingKey key = MakeRoundingKey(1, 2, 3);
  for (const auto& [a, b] : {std::pair{1u, 2u}, {1u, 3u}, {2u, 3u}}) {
    double covariance = 0;
    constexpr uint64_t kCount = 1 << 16;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t tile = i / 256 * 256;
      covariance += (OracleRandom16(key, tile, i, a) / 65535.0 - 0.5) *
                    (OracleRandom16(key, tile, i, b) / 65535.0 - 0.5);
    }
    EXPECT_LT(std::abs(covariance / kCount * 12), 5 / std::sqrt(double(kCount)));
  }
}

double Uniform20(uint32_t random20) { return (random20 + 0.5) / (1 << 20) - 0.5; }

TEST(StochasticRounding, ValuesOfAPairAreRoundedIndependentlyThoughTheyShareBits) {
  const RoundingKey key = MakeRoundingKey(4, 5, 6);
  constexpr uint64_t kPairs = 1 << 16;
  double covariance = 0, mean = 0;
  for (uint64_t i = 0; i < 2 * kPairs; i += 2) {
    const uint64_t tile = i / 256 * 256;
    const double first = Uniform20(OracleRandom20(key, tile, i, 1));
    const double second = Uniform20(OracleRandom20(key, tile, i + 1, 1));
    covariance += first * second * 12;
    mean += first + second;
  }
  // What the shared bits alone may do: 2^-8.
  EXPECT_LT(std::abs(covariance / kPairs), 1.0 / 256 + 5 / std::sqrt(double(kPairs)));
  EXPECT_LT(std::abs(mean / (2 * kPairs)), 5 * std::sqrt(1.0 / 12 / (2 * kPairs)));
}

TEST(StochasticRounding, RowsOfATileSpreadTheirRandomNumbers) {
  const RoundingKey key = MakeRoundingKey(7, 8, 9);
  constexpr uint64_t kTiles = 4096;
  for (const uint64_t of_pair : {0u, 1u}) {
    for (uint64_t row = 0; row < 8; ++row) {
      double sum = 0;  // each row by itself is uniform ...
      for (uint64_t tile = 0; tile < kTiles * 256; tile += 256) {
        sum += Uniform20(OracleRandom20(key, tile, tile + row * 32 + of_pair, 2));
      }
      EXPECT_LT(std::abs(sum / kTiles), 5 * std::sqrt(1.0 / 12 / kTiles)) << row;
    }
    double square = 0;  // ... and a column's sum varies no more than that of independent numbers
    for (uint64_t tile = 0; tile < kTiles * 256; tile += 256) {
      double sum = 0;
      for (uint64_t row = 0; row < 8; ++row) {
        sum += Uniform20(OracleRandom20(key, tile, tile + row * 32 + of_pair, 2));
      }
      square += sum * sum;
    }
    EXPECT_LT(square / kTiles, 8 / 12.0 * 1.1) << of_pair;
  }
}

TEST(Blockwise8, ExtremesStayFiniteAndZeroStaysZero) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  for (const float scale : {0.0f, least, 1e-42f, 1e-30f, 1.0f, 1e30f, most}) {
    for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad}) {
      std::vector<float> gradients(300, 0.0f);
      gradients[7] = scale;
      const std::vector<float> values =
          Stored(SpecOf(kind, StatePrecision::kBlockwise8), 1, 1, gradients);
      for (uint64_t i = 0; i < 300; ++i) {
        ASSERT_TRUE(std::isfinite(values[i])) << scale;
        ASSERT_TRUE(i == 7 || values[i] == 0.0f) << scale;
      }
      if (kind == OptimizerKind::kSgd && scale >= 1e-30f) {
        EXPECT_EQ(values[7], scale);
      }
    }
  }
}

// One value of every exponent, with mantissas around each border of the lower half.
std::vector<float> PatternClasses() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; high += 0x80) {
    for (const uint32_t top : {0u, 1u, 0x3Fu, 0x40u, 0x7Eu, 0x7Fu}) {
      for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
        values.push_back(std::bit_cast<float>(((high | top) << 16) | low));
      }
    }
  }
  return values;
}

TEST(SplitMaster, HoldsEveryClassOfBits) {
  OptimizerSpec spec = {.kind = OptimizerKind::kSgd};
  spec.master_format = MasterFormat::kSplit;
  const std::vector<float> values = PatternClasses();
  const uint64_t count = values.size();
  FormatShard shard = MakeShard(spec, DType::kBFloat16, {count});
  const StateRange range = {0, count, count, 0, shard.pointers(), shard.served.data()};
  const auto check = [&](const std::string& what) {
    std::vector<float> read(count);
    ReadState(spec, range, 0, read.data());
    for (uint64_t i = 0; i < count; ++i) {
      const float served = BFloat16ToFloat(Get<uint16_t>(shard.served, i));
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(read[i]) && std::isnan(served))
            << what << std::hex << Bits(values[i]);
        continue;
      }
      ASSERT_EQ(Bits(read[i]), Bits(values[i])) << what;
      const float down = std::bit_cast<float>(Bits(values[i]) & 0xFFFF0000u);
      const bool up = (Bits(values[i]) & 0x8000u) != 0;  // a tie goes away from zero
      const float up_value = std::bit_cast<float>((Bits(values[i]) & 0xFFFF0000u) + 0x10000u);
      ASSERT_EQ(Bits(served), Bits(up ? up_value : down)) << what;
    }
  };
  WriteMasters(spec, range, values.data());
  check("written ");
  ForEachTarget([&](const std::string& target) {
    const std::vector<float> zeros(count);
    const GradientSource source = {std::as_bytes(std::span(zeros)).data(), DType::kFloat32};
    UpdateRange update;
    update.count = update.shard_elements = count;
    update.gradients = {&source, 1};
    update.in = update.out = shard.pointers();
    update.served_in = update.served = shard.served.data();
    update.served_dtype = DType::kBFloat16;
    HyperParameters hyper;  // a learning rate of 0: masters stay
    ASSERT_EQ(ApplyUpdate(spec, hyper, 0, update).non_finite, kAllFinite);
    check(target + " ");
  });
}

}  // namespace
}  // namespace luwu::optim::testing
