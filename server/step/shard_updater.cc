#include "server/step/shard_updater.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "common/base/crc32c.h"

namespace luwu {
namespace {

constexpr uint64_t kBlockElements = 16 * 1024;

// Calls `use(segment, first, count)` for each block of each segment, in order, until it returns
// false. Blocks lie on multiples of kBlockElements, cut at segment borders.
template <typename Use>
void ForEachBlock(const std::vector<Segment>& segments, const Use& use) {
  for (const Segment& segment : segments) {
    const uint64_t end = segment.first + segment.count;
    for (uint64_t first = segment.first; first < end;) {
      const uint64_t next = std::min(end, (first / kBlockElements + 1) * kBlockElements);
      if (!use(segment, first, next - first)) return;
      first = next;
    }
  }
}

optim::StatePointers Advance(optim::StatePointers pointers, uint64_t elements) {
  for (float*& pointer : pointers) {
    if (pointer != nullptr) pointer += elements;
  }
  return pointers;
}

optim::GradientSource SourceAt(const std::byte* data, DType dtype, uint64_t element) {
  return {data + element * DTypeBytes(dtype), dtype};
}

const std::byte* BytesOf(const float* values) { return std::as_bytes(std::span(values, 1)).data(); }

}  // namespace

ShardUpdater::ShardUpdater(const JobSpec& spec, const ShardMap& map, StateStore* store,
                           ServedWeights* weights)
    : spec_(spec),
      map_(map),
      store_(store),
      weights_(weights),
      gradient_scale_(spec.reduction == Reduction::kMean ? 1.0f / float(spec.world_size) : 1.0f) {
  segments_.reserve(map.shard_count());
  for (const LocalShard& shard : map.shards()) {
    segments_.push_back(SegmentsOf(spec.layers[shard.layer], shard));
  }
}

std::optional<NonFiniteNote> ShardUpdater::Fold(const FoldRequest& request) const {
  std::optional<NonFiniteNote> note;
  ForEachBlock(segments_[request.index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    if (!segment.trainable) return true;
    bool first = request.first;
    for (const ShardSource& source : request.sources) {
      const auto gradient = SourceAt(source.data, spec_.gradient_dtype, at);
      optim::AccumulateGradient(gradient, count, first, request.sum + at);
      first = false;
      if (!note && optim::FindNonFinite(gradient, count) != optim::kAllFinite) {
        note = NonFiniteNote{source.rank, source.micro_step};
      }
    }
    return true;
  });
  return note;
}

UpdateResult ShardUpdater::Update(const UpdateRequest& request) const {
  const uint64_t version = request.step + 1;
  const uint64_t served_bytes = DTypeBytes(spec_.served_dtype);
  const ShardState state = store_->Acquire(request.index);  // stage: load state
  weights_->Invalidate(request.index, version);
  const std::byte* served = weights_->Payload(request.index, version);

  UpdateResult result;  // stage: update
  ForEachBlock(segments_[request.index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    if (segment.trainable) {
      const uint64_t bad = UpdateBlock(request, state, segment, at, count);
      if (bad != optim::kAllFinite) {
        result.non_finite = DescribeNonFinite(request, segment, at + bad);
        return false;
      }
    } else {
      ConvertBlock(request.index, version, state.current[0], at, count);
    }
    result.served_crc32c =
        Crc32c({served + at * served_bytes, count * served_bytes}, result.served_crc32c);
    return true;
  });
  store_->Release(request.index);  // stage: store state
  return result;
}

uint64_t ShardUpdater::UpdateBlock(const UpdateRequest& request, const ShardState& state,
                                   const Segment& segment, uint64_t first, uint64_t count) const {
  // Grows to the most sources a shard ever had, then stays.
  thread_local std::vector<optim::GradientSource> gradients;
  gradients.clear();
  if (request.sum != nullptr) {
    gradients.push_back(SourceAt(BytesOf(request.sum), DType::kFloat32, first));
  }
  for (const ShardSource& source : request.sources) {
    gradients.push_back(SourceAt(source.data, spec_.gradient_dtype, first));
  }
  optim::UpdateRange range;
  range.count = count;
  range.gradients = gradients;
  range.gradient_scale = gradient_scale_;
  range.in = Advance(state.current, first);
  range.out = Advance(state.next, first);
  range.served =
      weights_->Payload(request.index, request.step + 1) + first * DTypeBytes(spec_.served_dtype);
  range.served_dtype = spec_.served_dtype;
  return optim::ApplyUpdate(spec_.optimizer, request.groups[segment.group], request.applied, range);
}

void ShardUpdater::ConvertBlock(uint32_t index, uint64_t version, const float* master,
                                uint64_t first, uint64_t count) const {
  ConvertElements(DType::kFloat32, BytesOf(master + first), spec_.served_dtype,
                  weights_->Payload(index, version) + first * DTypeBytes(spec_.served_dtype),
                  count);
}

std::string ShardUpdater::DescribeNonFinite(const UpdateRequest& request, const Segment& segment,
                                            uint64_t element) const {
  const LocalShard& shard = map_.shards()[request.index];
  const LayerSpec& layer = spec_.layers[shard.layer];
  const TensorSpec& tensor = layer.tensors[segment.tensor];
  const std::string where =
      fmt::format("layer {} '{}', tensor '{}', element {}", shard.layer, layer.name, tensor.name,
                  shard.first_element + element - tensor.offset);
  const auto of_rank = [&](uint32_t rank, uint32_t micro_step) {
    return fmt::format("{}: the gradient of rank {} (micro-step {}) is not finite", where, rank,
                       micro_step);
  };
  if (request.sum_note) return of_rank(request.sum_note->rank, request.sum_note->micro_step);
  for (const ShardSource& source : request.sources) {
    const auto gradient = SourceAt(source.data, spec_.gradient_dtype, element);
    if (optim::FindNonFinite(gradient, 1) != optim::kAllFinite) {
      return of_rank(source.rank, source.micro_step);
    }
  }
  return fmt::format("{}: every rank's gradient is finite, but their sum overflows float32", where);
}

uint32_t ShardUpdater::Carry(uint32_t index, uint64_t step) const {
  return weights_->CopyToNext(index, step);
}

void ShardUpdater::PublishInitial(uint32_t index) const {
  const uint64_t served_bytes = DTypeBytes(spec_.served_dtype);
  const ShardState state = store_->Acquire(index);
  weights_->Invalidate(index, 0);
  const std::byte* served = weights_->Payload(index, 0);
  uint32_t crc = 0;
  ForEachBlock(segments_[index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    if (segment.tensor == kNoTensor) std::fill_n(state.current[0] + at, count, 0.0f);
    const bool second = state.next[0] != nullptr && state.next[0] != state.current[0];
    if (!segment.trainable && second) {
      std::memcpy(state.next[0] + at, state.current[0] + at, count * sizeof(float));
    }
    ConvertBlock(index, 0, state.current[0], at, count);
    crc = Crc32c({served + at * served_bytes, count * served_bytes}, crc);
    return true;
  });
  store_->Release(index);
  weights_->Publish(index, 0, crc);
}

}  // namespace luwu
