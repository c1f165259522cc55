#include "server/step/shard_updater.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "common/base/check.h"
#include "common/base/crc32c.h"

namespace luwu {
namespace {

constexpr uint64_t kBlockElements = 16 * 1024;
static_assert(kBlockElements % optim::kQuantBlock == 0, "a block is a range for an update");

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

optim::GradientSource SourceAt(const std::byte* data, DType dtype, uint64_t element) {
  return {data + element * DTypeBytes(dtype), dtype};
}

const std::byte* BytesOf(const float* values) { return std::as_bytes(std::span(values, 1)).data(); }

}  // namespace

ShardUpdater::ShardUpdater(const JobSpec& spec, const ShardMap& map, StateStore* store,
                           ServedCopies* weights)
    : spec_(spec),
      map_(map),
      store_(store),
      weights_(weights),
      masters_in_served_(spec.optimizer.master_format == MasterFormat::kSplit) {
  std::vector<uint64_t> layer_begins;
  uint64_t elements = 0;
  for (const LayerSpec& layer : spec.layers) {
    layer_begins.push_back(elements);
    elements += layer.elements;
  }
  segments_.reserve(map.shard_count());
  job_elements_.reserve(map.shard_count());
  for (const LocalShard& shard : map.shards()) {
    segments_.push_back(SegmentsOf(spec.layers[shard.layer], shard));
    job_elements_.push_back(layer_begins[shard.layer] + shard.first_element);
  }
}

uint32_t ShardUpdater::UnitOf(uint32_t index, const Segment& segment) const {
  return ClipUnitOf(spec_.clip_scope, map_.shards()[index].layer, segment.group);
}

std::vector<UnitSum> ShardUpdater::UnitsOf(uint32_t index) const {
  std::vector<UnitSum> units;
  for (const Segment& segment : segments_[index]) {
    const uint32_t unit = UnitOf(index, segment);
    const bool known = std::any_of(units.begin(), units.end(),
                                   [unit](const UnitSum& other) { return other.unit == unit; });
    if (segment.trainable && !known) units.push_back({unit, {}});
  }
  return units;
}

// In double and rounded once, so that an update that is redone, or done later, has the same scale.
float ShardUpdater::ScaleOf(const UpdateRequest& request, const Segment& segment) const {
  const double workers = spec_.reduction == Reduction::kMean ? spec_.world_size : 1;
  const double factor =
      request.decision == nullptr ? 1 : request.decision->factor(UnitOf(request.index, segment));
  return static_cast<float>(1.0 / workers / double(request.loss_scale) * factor);
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

std::span<const optim::GradientSource> ShardUpdater::GradientsAt(const UpdateRequest& request,
                                                                 uint64_t element) const {
  // Grows to the most sources a shard ever had, then stays.
  thread_local std::vector<optim::GradientSource> gradients;
  gradients.clear();
  if (request.decision != nullptr) {
    gradients.push_back(SourceAt(request.held, spec_.held_dtype, element));
    return gradients;
  }
  if (request.sum != nullptr) {
    gradients.push_back(SourceAt(BytesOf(request.sum), DType::kFloat32, element));
  }
  for (const ShardSource& source : request.sources) {
    gradients.push_back(SourceAt(source.data, spec_.gradient_dtype, element));
  }
  return gradients;
}

UpdateResult ShardUpdater::Hold(const UpdateRequest& request) const {
  UpdateResult result;
  for (UnitSum& squares : request.squares) squares.sum = ExactSum();
  ForEachBlock(segments_[request.index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    if (!segment.trainable) return true;
    return TakeOutcome(request, segment, at, HoldBlock(request, segment, at, count), &result);
  });
  return result;
}

UpdateResult ShardUpdater::Update(const UpdateRequest& request) const {
  const uint64_t version = request.step + 1;
  const uint64_t served_bytes = DTypeBytes(spec_.served_dtype);
  UpdateResult result;
  const StatusOr<std::byte*> served = weights_->Begin(request.index, version);
  if (!served.ok()) {
    result.status = served.status();
    return result;
  }
  const Buffers buffers = {store_->Acquire(request.index), *served};  // stage: load state
  if (request.decision == nullptr) {
    for (UnitSum& squares : request.squares) squares.sum = ExactSum();
  }

  // stage: update
  ForEachBlock(segments_[request.index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    if (!segment.trainable) {
      CarryBlock(request, buffers, at, count);
    } else if (!TakeOutcome(request, segment, at, UpdateBlock(request, buffers, segment, at, count),
                            &result)) {
      return false;
    }
    const ConstByteSpan block(*served + at * served_bytes, count * served_bytes);
    result.served_crc32c = Crc32c(block, result.served_crc32c);
    return true;
  });
  if (!result.non_finite.empty()) {
    store_->Drop(request.index);
    weights_->Abandon(request.index, version);
    return result;
  }
  if (buffers.state.served != nullptr) {
    std::memcpy(buffers.state.served, *served, weights_->PayloadBytes(request.index));
  }
  store_->Release(request.index);  // stage: store state
  weights_->Finish(request.index, version);
  return result;
}

optim::UpdateOutcome ShardUpdater::HoldBlock(const UpdateRequest& request, const Segment& segment,
                                             uint64_t first, uint64_t count) const {
  optim::HoldRange range;
  range.first = first;
  range.count = count;
  range.gradients = GradientsAt(request, first);
  range.gradient_scale = ScaleOf(request, segment);
  range.held = request.held + first * DTypeBytes(spec_.held_dtype);
  range.held_dtype = spec_.held_dtype;
  return optim::HoldSum(range);
}

optim::UpdateOutcome ShardUpdater::UpdateBlock(const UpdateRequest& request, const Buffers& buffers,
                                               const Segment& segment, uint64_t first,
                                               uint64_t count) const {
  optim::UpdateRange range;
  range.first = first;
  range.count = count;
  range.shard_elements = map_.shards()[request.index].elements;
  range.segment = static_cast<uint32_t>(&segment - segments_[request.index].data());
  range.job_element = job_elements_[request.index] + first;
  range.gradients = GradientsAt(request, first);
  range.gradient_scale = ScaleOf(request, segment);
  range.in = buffers.state.current;
  range.out = buffers.state.next;
  range.served_in = masters_in_served_ ? weights_->Payload(request.index, request.step) : nullptr;
  range.served = buffers.served;
  range.served_dtype = spec_.served_dtype;
  if (request.decision == nullptr && request.held != nullptr) {
    range.held = request.held + first * DTypeBytes(spec_.held_dtype);
    range.held_dtype = spec_.held_dtype;
  }
  return optim::ApplyUpdate(spec_.optimizer, request.groups[segment.group], request.applied, range);
}

void ShardUpdater::CarryBlock(const UpdateRequest& request, const Buffers& buffers, uint64_t first,
                              uint64_t count) const {
  const uint64_t width = DTypeBytes(spec_.served_dtype);
  std::byte* const target = buffers.served + first * width;
  if (const std::byte* former = weights_->Payload(request.index, request.step)) {
    std::memcpy(target, former + first * width, count * width);
    return;
  }
  const std::byte* masters = buffers.state.current.data[0] + first * sizeof(float);
  ConvertElements(DType::kFloat32, masters, spec_.served_dtype, target, count);
}

bool ShardUpdater::TakeOutcome(const UpdateRequest& request, const Segment& segment, uint64_t first,
                               const optim::UpdateOutcome& outcome, UpdateResult* result) const {
  if (outcome.non_finite != optim::kAllFinite) {
    result->non_finite = DescribeNonFinite(request, segment, first + outcome.non_finite);
    return false;
  }
  if (request.decision != nullptr) return true;
  const uint32_t unit = UnitOf(request.index, segment);
  for (UnitSum& squares : request.squares) {
    if (squares.unit == unit) squares.sum.Add(outcome.squared_norm);
  }
  return true;
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
  return fmt::format("{}: every rank's gradient is finite, but their sum overflows {}", where,
                     DTypeName(spec_.held_dtype));
}

uint32_t ShardUpdater::Carry(uint32_t index, uint64_t step) const {
  return weights_->CopyToNext(index, step);
}

optim::StateRange ShardUpdater::RangeOf(uint32_t index, const optim::StateArrays& state,
                                        const Segment& segment, uint64_t first,
                                        uint64_t count) const {
  return {.first = first,
          .count = count,
          .shard_elements = map_.shards()[index].elements,
          .segment = static_cast<uint32_t>(&segment - segments_[index].data()),
          .state = state,
          .served = weights_->Payload(index, 0)};
}

Status ShardUpdater::LoadMasters(uint32_t index, uint64_t first,
                                 std::span<const float> values) const {
  RETURN_IF_ERROR(store_->Open(index));
  const ShardState state = store_->Acquire(index);
  if (!trainable(index)) {  // fp32 in any job
    std::memcpy(state.current.data[0] + first * sizeof(float), values.data(), values.size_bytes());
  } else {
    if (masters_in_served_) RETURN_IF_ERROR(weights_->Begin(index, 0).status());
    const Segment& any = segments_[index].front();  // masters have no blocks
    optim::WriteMasters(spec_.optimizer, RangeOf(index, state.current, any, first, values.size()),
                        values.data());
  }
  store_->Keep(index);
  return OkStatus();
}

bool ShardUpdater::IsStateRange(uint32_t index, uint64_t first, uint64_t count) const {
  constexpr uint64_t kBlock = optim::kQuantBlock;
  return std::any_of(segments_[index].begin(), segments_[index].end(), [&](const Segment& segment) {
    if (first < segment.first || !RangeFits(first - segment.first, count, segment.count)) {
      return false;
    }
    const uint64_t end = first + count;
    return (first == segment.first || first % kBlock == 0) &&
           (end == segment.first + segment.count || end % kBlock == 0);
  });
}

Status ShardUpdater::LoadState(uint32_t index, uint32_t array, uint64_t first,
                               std::span<const float> values) const {
  LUWU_CHECK(IsStateRange(index, first, values.size()), "whole blocks of one segment");
  const auto& segments = segments_[index];
  const auto segment = std::find_if(segments.begin(), segments.end(), [first](const Segment& each) {
    return first < each.first + each.count;
  });
  RETURN_IF_ERROR(store_->Open(index));
  const ShardState state = store_->Acquire(index);
  optim::WriteState(spec_.optimizer, RangeOf(index, state.current, *segment, first, values.size()),
                    array, values.data());
  store_->Keep(index);
  return OkStatus();
}

Status ShardUpdater::PublishLoaded(uint32_t index, uint64_t version) const {
  const uint64_t served_bytes = weights_->PayloadBytes(index);
  RETURN_IF_ERROR(store_->Open(index));
  // Masters were loaded beside the buffer of even versions.
  ASSIGN_OR_RETURN(std::byte* const served, weights_->Begin(index, 0));
  const Buffers buffers = {store_->Acquire(index), served};
  ForEachBlock(segments_[index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    InitBlock(index, buffers, segment, at, count);
    return true;
  });
  if (buffers.state.served != nullptr) std::memcpy(buffers.state.served, served, served_bytes);
  store_->Keep(index);
  const uint32_t crc = Crc32c({served, served_bytes});
  weights_->Finish(index, 0);
  if (version % 2 == 1) weights_->CopyToNext(index, version - 1);
  weights_->Publish(index, version, crc);
  return OkStatus();
}

Status ShardUpdater::PublishInitial(uint32_t index, bool state_loaded) const {
  const uint64_t served_bytes = DTypeBytes(spec_.served_dtype);
  RETURN_IF_ERROR(store_->Open(index));
  ASSIGN_OR_RETURN(std::byte* const served, weights_->Begin(index, 0));
  const Buffers buffers = {store_->Acquire(index), served};
  // Memory that nobody has written to is zero.
  const bool fresh = state_loaded || spec_.optimizer.initial_accumulator != 0;
  uint32_t crc = 0;
  ForEachBlock(segments_[index], [&](const Segment& segment, uint64_t at, uint64_t count) {
    InitBlock(index, buffers, segment, at, count);
    if (fresh) InitMoments(index, buffers.state, segment, at, count);
    crc = Crc32c({served + at * served_bytes, count * served_bytes}, crc);
    return true;
  });
  if (buffers.state.served != nullptr) {
    std::memcpy(buffers.state.served, served, weights_->PayloadBytes(index));
  }
  store_->Keep(index);
  weights_->Finish(index, 0);
  weights_->Publish(index, 0, crc);
  return OkStatus();
}

Status ShardUpdater::PublishRestored(uint32_t index, uint64_t version,
                                     const optim::StateArrays& state,
                                     const std::byte* served) const {
  if (!trainable(index)) version = 0;
  ASSIGN_OR_RETURN(std::byte* const payload, weights_->Begin(index, version));
  if (masters_in_served_ && trainable(index)) {
    std::memcpy(payload, served, weights_->PayloadBytes(index));
  } else {
    ConvertElements(DType::kFloat32, state.data[0], spec_.served_dtype, payload,
                    map_.shards()[index].elements);
  }
  const uint32_t crc = Crc32c({payload, weights_->PayloadBytes(index)});
  weights_->Finish(index, version);
  weights_->Publish(index, version, crc);
  return OkStatus();
}

void ShardUpdater::InitBlock(uint32_t index, const Buffers& buffers, const Segment& segment,
                             uint64_t first, uint64_t count) const {
  const ShardState& state = buffers.state;
  const bool split = masters_in_served_ && trainable(index);
  const uint64_t master_bytes = split ? sizeof(uint16_t) : sizeof(float);
  std::byte* masters = state.current.data[0] + first * master_bytes;
  std::byte* served = buffers.served + first * DTypeBytes(spec_.served_dtype);
  if (segment.tensor == kNoTensor) {
    std::memset(masters, 0, count * master_bytes);
    if (split) std::memset(served, 0, count * DTypeBytes(spec_.served_dtype));
  }
  if (!segment.trainable && state.next != state.current) {
    std::memcpy(state.next.data[0] + first * master_bytes, masters, count * master_bytes);
  }
  if (!split) ConvertElements(DType::kFloat32, masters, spec_.served_dtype, served, count);
}

void ShardUpdater::InitMoments(uint32_t index, const ShardState& state, const Segment& segment,
                               uint64_t first, uint64_t count) const {
  if (!segment.trainable) return;
  optim::InitialState(spec_.optimizer, RangeOf(index, state.current, segment, first, count));
}

void ShardUpdater::ReadState(const StateView& view, uint64_t first, std::span<float> out) const {
  ReadStateValues({spec_, map_.shards()[view.index], segments_[view.index]}, view, first, out);
}

}  // namespace luwu
