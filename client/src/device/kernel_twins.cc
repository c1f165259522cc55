#include "client/src/device/kernel_twins.h"

#include <array>

#include "common/base/check.h"

namespace luwu::client::kernels {
namespace {

template <typename Source, typename Target>
void Pack(const TwinCall& call, float scale, Partial* partials) {
  const auto* source = static_cast<const Source*>(call.source);
  auto* target = static_cast<Target*>(call.target);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    std::array<Partial, kThreads> sums = {};
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      for (uint64_t i = uint64_t{block} * kThreads + thread; i < call.count;
           i += uint64_t{kBlocks} * kThreads) {
        PackOne(source[i], scale, &target[i], &sums[thread]);
      }
    }
    for (uint32_t stride = kThreads / 2; stride > 0; stride /= 2) {
      for (uint32_t thread = 0; thread < stride; ++thread) {
        sums[thread].square_sum += sums[thread + stride].square_sum;
        sums[thread].non_finite += sums[thread + stride].non_finite;
      }
    }
    partials[block].square_sum += sums[0].square_sum;
    partials[block].non_finite += sums[0].non_finite;
  }
}

template <typename Source, typename Target>
void Unpack(const TwinCall& call) {
  const auto* source = static_cast<const Source*>(call.source);
  auto* target = static_cast<Target*>(call.target);
  for (uint64_t i = 0; i < call.count; ++i) FromFloat(ToFloat(source[i]), &target[i]);
}

// Calls `run(Source(), Target())` with the types that the dtypes name.
template <typename Source, typename Run>
void WithTarget(DType target, const Run& run) {
  if (target == DType::kFloat32) return run(Source(), float());
  if (target == DType::kBFloat16) return run(Source(), BFloat16());
  run(Source(), Float16());
}
template <typename Run>
void WithTypes(DType source, DType target, const Run& run) {
  LUWU_CHECK(IsSupported(source) && IsSupported(target), "dtypes are checked before");
  if (source == DType::kFloat32) return WithTarget<float>(target, run);
  if (source == DType::kBFloat16) return WithTarget<BFloat16>(target, run);
  WithTarget<Float16>(target, run);
}

}  // namespace

void PackTwin(const TwinCall& call, float scale, Partial* partials) {
  WithTypes(call.source_dtype, call.target_dtype, [&](auto source, auto target) {
    Pack<decltype(source), decltype(target)>(call, scale, partials);
  });
}

void UnpackTwin(const TwinCall& call) {
  WithTypes(call.source_dtype, call.target_dtype,
            [&](auto source, auto target) { Unpack<decltype(source), decltype(target)>(call); });
}

Partial Total(const Partial* partials) {
  Partial total = {0.0, 0};
  for (uint32_t block = 0; block < kBlocks; ++block) {
    total.square_sum += partials[block].square_sum;
    total.non_finite += partials[block].non_finite;
  }
  return total;
}

}  // namespace luwu::client::kernels
