// How far one shard has come in the open step: which contributions have arrived from which rank,
// which wait ("parked", in their slot or in an overflow block), and what may be summed next.
//
// The sum has a fixed order: micro-step 0 of rank 0, 1, ..., then micro-step 1, ...; a rank that
// has closed before a micro-step is passed over. Contributions are taken out in that order only: a
// prefix by TakeInOrder (to be folded), or all by TakeAll once the shard is complete. Taken means
// counted for good; parked ones can still be dropped when their rank is taken over.
//
// Pure logic. Not thread-safe: guarded by its job's lock.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace luwu {

inline constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

// One gradient of one rank for one micro-step, and where its bytes lie: in a slot of the rank's
// inbox or in an overflow block; the other one is kNowhere.
struct Contribution {
  uint32_t micro_step = 0;
  uint32_t rank = 0;
  uint32_t slot = kNowhere;
  uint32_t block = kNowhere;
};

class ShardProgress {
 public:
  explicit ShardProgress(uint32_t world_size);
  // What it allocates; more only while a rank accumulates ahead of the others.
  static uint64_t BytesFor(uint32_t world_size) {
    return world_size * (sizeof(RankProgress) + sizeof(Contribution));
  }

  // Begins a new step. Nothing may be parked (CHECKed).
  void Reset();

  enum class Verdict : uint8_t {
    kAccepted,
    kDuplicate,   // counted before
    kBeyondClose  // contradicts what the rank has closed
  };
  // Parks the contribution when accepted.
  Verdict AddPayload(const Contribution& contribution);
  // The rank sends payloads 0 .. total - 1 and no more.
  Verdict Close(uint32_t rank, uint32_t total);

  // All payloads of the rank are here and it has closed.
  bool RankDone(uint32_t rank) const;
  bool complete() const { return done_ranks_ == ranks_.size(); }
  const std::vector<Contribution>& parked() const { return parked_; }

  // Length of the run of parked contributions that is next in order.
  size_t InOrderCount() const;
  // Moves that run out, in order.
  void TakeInOrder(std::vector<Contribution>* taken);
  // Moves everything out, in order. The shard must be complete (CHECKed).
  void TakeAll(std::vector<Contribution>* taken);
  // The parked contribution now lies in a block instead of its slot.
  void MoveToBlock(uint32_t micro_step, uint32_t rank, uint32_t block);

  // Un-counts what is parked of `rank` and moves it to `dropped`. Its close is forgotten too,
  // unless the sum already relies on it.
  void DropRank(uint32_t rank, std::vector<Contribution>* dropped);

 private:
  static constexpr uint32_t kOpen = std::numeric_limits<uint32_t>::max();
  struct RankProgress {
    uint32_t taken = 0;      // payloads 0 .. taken - 1 have been taken out
    uint32_t parked = 0;     // how many more are here
    uint32_t total = kOpen;  // of the close
  };
  struct Position {
    uint32_t micro_step = 0;
    uint32_t rank = 0;
    auto operator<=>(const Position&) const = default;
  };

  static Position PositionOf(const Contribution& contribution) {
    return {contribution.micro_step, contribution.rank};
  }
  Position After(Position position) const;
  // True when every position in [from, to) belongs to a rank that has closed before it.
  bool OnlyClosedBetween(Position from, Position to) const;
  void CountDone(bool was_done, uint32_t rank);

  std::vector<RankProgress> ranks_;
  uint32_t done_ranks_ = 0;
  Position next_;                     // everything before it is summed or passed over
  std::vector<Contribution> parked_;  // by position
};

}  // namespace luwu
