// The requests of one queue pair: queued, cut into work requests that fit the device (message size,
// scatter entries, staging memory, the peer's chunks), posted in chains, and finished in order.
// A queue pair completes in posting order, so only some work requests ask for a completion; each
// completion settles all before it.
//
// Not thread-safe; the endpoint's mutex guards it. Items come from a pool that grows to the largest
// number ever outstanding, then nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/transport/request_list.h"
#include "common/transport/verbs/channel.h"
#include "common/transport/verbs/staging.h"

namespace luwu::transport {

enum class VerbsOp : uint8_t { kRead, kWrite };

// A request as it is posted.
struct VerbsRequest {
  VerbsOp op = VerbsOp::kWrite;
  bool notify = false;
  uint32_t immediate = 0;
  RemoteSpan remote;
  std::span<const ConstByteSpan> source;
  std::byte* target = nullptr;
};

class WorkQueue {
 public:
  WorkQueue(VerbsChannel* channel, StagingPool* staging, uint32_t index);

  // kResourceExhausted when too many requests are outstanding.
  Status Push(const VerbsRequest& op, Request* request);
  // Posts what fits now. An error is one of the device: the link must end.
  Status Dispatch();

  // One work request that is done; a read's bytes may have to be copied out of `staged`.
  struct Settled {
    WorkQueue* queue = nullptr;
    StagingPiece staged;
    std::byte* copy_to = nullptr;
    uint32_t bytes = 0;
    void* item = nullptr;  // whose last piece it was
  };
  // Appends everything up to the completion `id` to *settled.
  void Settle(uint64_t id, std::vector<Settled>* settled);
  // After the copy: frees what it held; a request that is done goes to *done.
  void Finish(const Settled& settled, RequestList* done);

  bool idle() const { return head_ == nullptr && first_ == next_; }
  // Gives up everything with `result`.
  void FailAll(const Status& result, RequestList* done);

 private:
  static constexpr uint32_t kItemsPerChunk = 64;
  static constexpr uint32_t kItemsMax = 16 * 1024;
  static constexpr uint32_t kChain = 16;

  struct Item {
    Item* next = nullptr;
    Request* request = nullptr;
    VerbsOp op = VerbsOp::kWrite;
    bool notify = false;
    uint32_t immediate = 0;
    RemoteSpan remote;
    std::byte* target = nullptr;
    uint64_t progressed = 0;  // bytes in posted work requests
    uint32_t range_count = 0;
    uint32_t range = 0;  // the first one not used up, and how much of it is
    uint64_t range_used = 0;
    std::array<ConstByteSpan, kGatherMax> ranges;
  };
  // A posted work request.
  struct Entry {
    Item* last_of = nullptr;
    StagingPiece staged;
    std::byte* copy_to = nullptr;
    uint32_t bytes = 0;
  };
  // One link of a chain that is being built.
  struct Slot {
    ibv_send_wr wr;
    std::array<ibv_sge, VerbsChannel::kSges> sges;
    std::array<std::byte, 128> inline_bytes;
  };

  Item* Allocate();
  void Release(Item* item);
  void Complete(Item* item, const Status& result, RequestList* done);
  // False when the next work request must wait for staging memory.
  bool BuildNext(Slot* slot, Entry* entry);
  bool BuildWrite(Item* item, uint64_t bytes_max, Slot* slot, Entry* entry);
  bool BuildRead(Item* item, uint64_t bytes_max, Slot* slot, Entry* entry);
  uint64_t TakePinned(Item* item, uint64_t bytes_max, Slot* slot);
  uint64_t PinnedAt(const std::byte* at, uint64_t bytes, uint32_t* lkey) const;
  static void Gather(Item* item, std::byte* to, uint64_t bytes);
  bool MustSignal(const Entry& entry) const;
  Status Post(uint32_t count);

  VerbsChannel* const channel_;
  StagingPool* const staging_;
  const uint32_t index_;  // of the queue pair
  std::shared_ptr<const PinnedRanges> pinned_;

  std::vector<std::unique_ptr<std::array<Item, kItemsPerChunk>>> chunks_;
  Item* free_ = nullptr;
  Item* head_ = nullptr;  // not wholly posted
  Item* tail_ = nullptr;

  std::vector<Entry> entries_;  // a ring; ids count work requests
  uint64_t first_ = 0;          // the oldest that is not settled
  uint64_t next_ = 0;
  uint32_t unsignalled_ = 0;  // posted since one that asks for a completion
  std::unique_ptr<std::array<Slot, kChain>> chain_;
};

}  // namespace luwu::transport
