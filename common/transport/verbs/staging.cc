#include "common/transport/verbs/staging.h"

#include <utility>

namespace luwu::transport {
namespace {

constexpr uint64_t kSmallPieces = 64;

}  // namespace

StatusOr<std::unique_ptr<StagingPool>> StagingPool::Create(VerbsDomain* domain, uint64_t bytes) {
  const uint64_t large = bytes / kLargeBytes;
  std::unique_ptr<StagingPool> pool(new StagingPool);
  ASSIGN_OR_RETURN(pool->memory_, AllocateHuge(large * kLargeBytes + kSmallPieces * kSmallBytes));
  ASSIGN_OR_RETURN(pool->mr_, domain->RegisterLocal(pool->memory_.span()));
  pool->large_pieces_ = large;
  pool->Reset();
  return pool;
}

void StagingPool::Reset() {
  small_.clear();
  large_.clear();
  std::byte* at = memory_.data();
  for (uint64_t i = 0; i < large_pieces_; ++i, at += kLargeBytes) large_.push_back(at);
  for (uint64_t i = 0; i < kSmallPieces; ++i, at += kSmallBytes) small_.push_back(at);
}

StagingPiece StagingPool::Take(uint64_t bytes) {
  std::vector<std::byte*>& fitting = bytes <= kSmallBytes && !small_.empty() ? small_ : large_;
  if (fitting.empty()) return {};
  const StagingPiece piece = {fitting.back(), &fitting == &small_ ? kSmallBytes : kLargeBytes};
  fitting.pop_back();
  return piece;
}

void StagingPool::Give(const StagingPiece& piece) {
  (piece.bytes == kSmallBytes ? small_ : large_).push_back(piece.data);
}

}  // namespace luwu::transport
