// An optimizer that the product does not know, added by this file alone: a rule on the shared
// kernel parts and one registry row. signSGD (Bernstein et al., arXiv 1802.04434) that counts the
// updates of each element in its second array.
#include <gtest/gtest.h>

#include "server/optim/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/optim/toy_optimizer_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "server/optim/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace luwu::optim {
namespace HWY_NAMESPACE {

struct ToyRule {
  static constexpr uint32_t kMoments = 1;
  static constexpr bool kHas8Bit = true;
  static constexpr StateRole kRoles[1] = {StateRole::kUnsigned};
  const float lr;

  HWY_INLINE void operator()(V32 gradient, V32& master, V32& updates, V32& /*unused*/,
                             V32& /*unused*/) const {
    const F32 d;
    master = hn::Sub(master, hn::CopySign(hn::Set(d, lr), gradient));
    updates = hn::Add(updates, hn::Set(d, 1.0f));
  }
};

UpdateOutcome UpdateToy(float lr, const OptimizerSpec& optimizer, uint64_t applied,
                        const UpdateRange& range) {
  return RunUpdate(ToyRule{lr}, optimizer, applied, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace luwu::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "tests/unit/optim/format_oracle.h"

namespace luwu::optim {

HWY_EXPORT(UpdateToy);

namespace testing {
namespace {

Moments ToyMoments(const OptimizerSpec&) { return {1, {StateRole::kUnsigned}}; }

UpdateOutcome ApplyToy(const OptimizerSpec& optimizer, const HyperParameters& hyper,
                       uint64_t applied, const UpdateRange& range) {
  return HWY_DYNAMIC_DISPATCH(UpdateToy)(static_cast<float>(hyper.lr), optimizer, applied, range);
}

constexpr OptimizerEntry kToy = {OptimizerKind::kUnspecified, ToyMoments, ApplyToy};

TEST(ToyOptimizer, RunsInEveryFormatThroughTheRegistrySeam) {
  constexpr uint64_t kCount = 777;
  ForEachTarget([&](const std::string& target) {
    for (const StatePrecision precision :
         {StatePrecision::kFloat32, StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
      SCOPED_TRACE(target + " " + std::string(StatePrecisionName(precision)));
      OptimizerSpec spec;
      spec.state_precision = precision;
      const StateLayout layout = LayoutOf(kToy, spec);
      ASSERT_EQ(layout.count, 2u);
      std::vector<float> masters(kCount, 1.0f);
      std::vector<std::byte> updates(ArrayBytes(layout.formats[1], kCount, 1));
      std::vector<std::byte> served(2 * kCount);
      GradientBuffer gradient(DType::kBFloat16, kCount);
      for (uint64_t i = 0; i < kCount; ++i) gradient.Set(i, i % 3 == 0 ? -2.0f : 3.0f);
      const GradientSource source = gradient.source();
      HyperParameters hyper;
      hyper.lr = 0.25;
      UpdateRange range;
      range.count = range.shard_elements = kCount;
      range.gradients = {&source, 1};
      range.out.data = {std::as_writable_bytes(std::span(masters)).data(), updates.data()};
      range.in = range.out;
      range.served = served.data();
      range.served_dtype = DType::kBFloat16;
      for (uint64_t step = 0; step < 2; ++step) {
        ASSERT_EQ(ApplyUpdate(kToy, spec, hyper, step, range).non_finite, kAllFinite);
      }
      for (uint64_t i = 0; i < kCount; ++i) {
        const float expected = i % 3 == 0 ? 1.5f : 0.5f;
        ASSERT_EQ(masters[i], expected);
        ASSERT_EQ(BFloat16ToFloat(Get<uint16_t>(served, i)), expected);
      }
      if (precision == StatePrecision::kFloat32) {
        for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(Get<float>(updates, i), 2.0f);
      }
    }
  });
}

TEST(Registry, KnowsEveryKindOnceAndNoOther) {
  for (int kind = 0; kind < 256; ++kind) {
    const auto value = static_cast<OptimizerKind>(kind);
    const OptimizerEntry* entry = FindOptimizer(value);
    EXPECT_EQ(entry != nullptr, !OptimizerName(value).empty()) << kind;
    EXPECT_TRUE(entry == nullptr || entry->kind == value);
  }
}

}  // namespace
}  // namespace testing
}  // namespace luwu::optim
#endif  // HWY_ONCE
