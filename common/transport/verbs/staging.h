// Registered memory of a link through which bytes pass that lie in memory the device does not know:
// tensors that the caller may free and map again at any time. (A cache of registrations would have
// to hear of every munmap, or a READ would go to pages that are no longer the tensor's.) What is
// pinned for good (VerbsDomain::Pin) does not come here.
//
// Not thread-safe; the endpoint's mutex guards it. Bounded: an empty pool holds requests back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/transport/verbs/domain.h"

namespace luwu::transport {

struct StagingPiece {
  std::byte* data = nullptr;  // null: none
  uint32_t bytes = 0;         // its size
};

class StagingPool {
 public:
  static constexpr uint32_t kSmallBytes = 4 * kKiB;
  static constexpr uint32_t kLargeBytes = 256 * kKiB;

  // `bytes` in large pieces, and some small ones.
  static StatusOr<std::unique_ptr<StagingPool>> Create(VerbsDomain* domain, uint64_t bytes);

  // A piece for up to `bytes`, perhaps for less; none when nothing is free.
  StagingPiece Take(uint64_t bytes);
  void Give(const StagingPiece& piece);
  // All pieces are free again.
  void Reset();
  uint32_t lkey() const { return mr_->lkey; }

 private:
  StagingPool() = default;

  Mapping memory_;
  MrHandle mr_;  // after the memory: goes first
  uint64_t large_pieces_ = 0;
  std::vector<std::byte*> small_;
  std::vector<std::byte*> large_;
};

}  // namespace luwu::transport
