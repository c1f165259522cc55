#include "tests/bench/optimizer/case_memory.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kSlotTrailerBytes = 4096;

uint64_t SlotBytes(const BenchCase& c) {
  return kBenchShardElements * DTypeBytes(c.gradient_dtype) + kSlotTrailerBytes;
}

uint64_t StateBytesPerShard(const BenchCase& c) {
  const optim::StateLayout layout = optim::LayoutOf(c.optimizer);
  uint64_t bytes = 0;
  for (uint32_t k = 0; k < layout.count; ++k) {
    bytes += optim::ArrayBytes(layout.formats[k], kBenchShardElements, 1);
  }
  return bytes * (c.in_place ? 1 : 2);
}

uint64_t ServedBytesPerShard(const BenchCase& c) {
  return 2 * kBenchShardElements * DTypeBytes(c.served_dtype);
}

uint64_t HeldBytesPerShard(const BenchCase& c) {
  return c.hold || c.hold_only ? kBenchShardElements * sizeof(float) : 0;
}

uint64_t CaseBytesPerShard(const BenchCase& c) {
  return StateBytesPerShard(c) + ServedBytesPerShard(c) + HeldBytesPerShard(c) +
         c.workers * SlotBytes(c);
}

// Hands out the block piece by piece.
class Carver {
 public:
  explicit Carver(const Mapping& memory) : memory_(memory) {}
  std::byte* Take(uint64_t bytes) {
    std::byte* piece = memory_.data() + used_;
    used_ += bytes;
    LUWU_CHECK(used_ <= memory_.bytes(), "the block was sized for the largest case");
    return piece;
  }

 private:
  const Mapping& memory_;
  uint64_t used_ = 0;
};

// Small values of both signs.
std::vector<std::byte> GradientPattern(DType dtype) {
  std::vector<float> values(kBenchShardElements);
  for (uint64_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(i * 2654435761u % 2001) - 1000) * 1e-5f;
  }
  std::vector<std::byte> pattern(values.size() * DTypeBytes(dtype));
  ConvertElements(DType::kFloat32, std::as_bytes(std::span(values)).data(), dtype, pattern.data(),
                  values.size());
  return pattern;
}

}  // namespace

StatusOr<CaseMemory> CaseMemory::Create(const std::vector<BenchCase>& cases, uint64_t params) {
  CaseMemory memory;
  memory.shards_ = std::max<uint64_t>(1, params / kBenchShardElements);
  uint64_t bytes = 0;
  for (const BenchCase& c : cases) bytes = std::max(bytes, CaseBytesPerShard(c) * memory.shards_);
  ASSIGN_OR_RETURN(memory.memory_, AllocateHuge(bytes));
  return memory;
}

const std::vector<CaseShard>& CaseMemory::Prepare(const BenchCase& c) {
  const optim::StateLayout layout = optim::LayoutOf(c.optimizer);
  Carver carver(memory_);
  layout_.assign(shards_, CaseShard());
  for (uint64_t i = 0; i < shards_; ++i) {
    layout_[i].first_element = i * kBenchShardElements;
    std::byte* state = carver.Take(StateBytesPerShard(c));
    std::memset(state, 0, StateBytesPerShard(c));
    for (const bool second : {false, true}) {
      if (second && c.in_place) break;
      optim::StateArrays& arrays = second ? layout_[i].out : layout_[i].in;
      for (uint32_t k = 0; k < layout.count; ++k) {
        arrays.data[k] = state;
        state += optim::ArrayBytes(layout.formats[k], kBenchShardElements, 1);
      }
    }
    if (c.in_place) layout_[i].out = layout_[i].in;
  }
  for (CaseShard& shard : layout_) {
    const uint64_t bytes = ServedBytesPerShard(c);
    shard.served = carver.Take(bytes);
    std::memset(shard.served, 0, bytes);
    const bool split = c.optimizer.master_format == MasterFormat::kSplit;
    shard.served_next = split ? shard.served + bytes / 2 : shard.served;
    if (HeldBytesPerShard(c) > 0) shard.held = carver.Take(HeldBytesPerShard(c));
  }
  const std::vector<std::byte> pattern = GradientPattern(c.gradient_dtype);
  for (uint32_t worker = 0; worker < c.workers; ++worker) {
    for (CaseShard& shard : layout_) {
      std::byte* slot = carver.Take(SlotBytes(c));
      std::memcpy(slot, pattern.data(), pattern.size());
      shard.gradients.push_back(slot);
    }
  }
  return layout_;
}

}  // namespace luwu::bench
