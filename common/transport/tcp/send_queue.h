// What one tcp connection has to send and what it waits for: posted requests until they complete,
// replies to the peer's reads, the newest acknowledgement. Pure bookkeeping, no socket: Fill turns
// the next things to send into a SendBatch.
//
// Not thread-safe; the connection's mutex guards it. A request is queued in one object from a pool
// that grows to the largest number ever outstanding, then no allocation follows.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/request_list.h"
#include "common/transport/tcp/frame.h"

namespace luwu::transport {

// Frames that are being handed to the kernel. Headers live here, payload where it was.
class SendBatch {
 public:
  static constexpr uint32_t kFramesMax = 32;
  static constexpr uint32_t kPiecesMax = 256;
  static constexpr uint32_t kPiecesPerWriteMax = 1 + kGatherMax;

  bool empty() const { return first_ == pieces_; }
  bool HasRoom() const {
    return frames_ < kFramesMax && pieces_ + kPiecesPerWriteMax <= kPiecesMax;
  }
  void Clear() { first_ = pieces_ = frames_ = 0; }
  FrameHeader* AddHeader();
  void AddBytes(ConstByteSpan bytes);
  // One sendmsg. The number of bytes taken, or -1 with errno; *all tells whether nothing is left.
  ssize_t Send(int fd, bool* all);

 private:
  std::array<iovec, kPiecesMax> iov_;
  std::array<FrameHeader, kFramesMax> headers_;
  uint32_t first_ = 0;
  uint32_t pieces_ = 0;
  uint32_t frames_ = 0;
};

// A request as it is posted.
struct PostedOp {
  Op op = Op::kWrite;  // kRead, kWrite or kNotify
  bool notify = false;
  uint32_t immediate = 0;
  RemoteSpan remote;
  std::span<const ConstByteSpan> source;
  std::byte* target = nullptr;
};

struct PostedItem {
  PostedItem* next = nullptr;
  Request* request = nullptr;
  Op op = Op::kWrite;
  bool notify = false;
  uint32_t immediate = 0;
  RemoteSpan remote;
  std::byte* target = nullptr;
  uint64_t id = 0;
  uint64_t progressed = 0;    // payload bytes put into batches (write) or received (read)
  uint64_t end_position = 0;  // of its last byte in the stream of sent bytes
  uint32_t range_count = 0;
  uint32_t range = 0;  // the first one not used up, and how much of it is
  uint64_t range_used = 0;
  std::array<ConstByteSpan, kGatherMax> ranges;
};

class SendQueue {
 public:
  SendQueue();

  // ---- ours ----------------------------------------------------------------------------------
  Status Push(const PostedOp& op, Request* request);

  // ---- the peer's ----------------------------------------------------------------------------
  // A violation when the peer has too many reads outstanding.
  Status PushReply(ConstByteSpan source, uint64_t id);
  void PushAck(uint64_t id) { ack_id_ = id; }

  // ---- sending -------------------------------------------------------------------------------
  // Puts up to about `bytes_max` into the empty `batch`; false when there is nothing to send.
  bool Fill(SendBatch* batch, uint64_t bytes_max);
  bool HasWork() const;
  // Nothing of ours is queued or unanswered.
  bool Idle() const;
  void OnSent(uint64_t bytes) { sent_ += bytes; }
  // Bytes ever put into batches for the peer's reads.
  uint64_t replied() const { return replied_; }

  // ---- answers of the peer; what they complete goes to `done` ----------------------------------
  Status OnAck(uint64_t id, RequestList* done);
  // The read that the next reply must answer, null when none has been sent.
  PostedItem* AwaitedRead();
  void FinishAwaitedRead(RequestList* done);

  // Completes everything with `result` and forgets all.
  void FailAll(const Status& result, RequestList* done);

 private:
  static constexpr uint32_t kItemsPerChunk = 64;
  static constexpr uint32_t kItemsMax = 16 * 1024;

  struct ItemList {
    PostedItem* head = nullptr;
    PostedItem* tail = nullptr;
    void Push(PostedItem* item);
    PostedItem* Pop();
  };
  struct Reply {
    ConstByteSpan source;
    uint64_t id = 0;
    uint64_t progressed = 0;
  };
  using Chunk = std::array<PostedItem, kItemsPerChunk>;

  PostedItem* Allocate();
  void Release(PostedItem* item);
  void FillReads(SendBatch* batch);
  uint64_t FillReply(SendBatch* batch, uint64_t bytes_max);
  uint64_t FillWrite(SendBatch* batch, uint64_t bytes_max);
  FrameHeader* AddHeader(SendBatch* batch, Op op, uint64_t id);
  static uint64_t Gather(PostedItem* item, uint64_t bytes, SendBatch* batch);
  void Complete(PostedItem* item, const Status& result, RequestList* done);

  std::vector<std::unique_ptr<Chunk>> chunks_;
  PostedItem* free_ = nullptr;

  ItemList reads_;   // not sent
  ItemList writes_;  // not wholly in a batch; notifies are among them
  ItemList awaiting_replies_;
  ItemList awaiting_acks_;
  uint32_t reads_in_flight_ = 0;
  uint64_t next_read_id_ = 1;
  uint64_t next_write_id_ = 1;

  std::array<Reply, kReadsInFlightMax> replies_;  // a ring
  uint32_t replies_first_ = 0;
  uint32_t replies_count_ = 0;
  uint64_t ack_id_ = 0;  // 0: nothing to acknowledge
  bool reply_turn_ = true;

  uint64_t batched_ = 0;  // bytes ever put into batches
  uint64_t sent_ = 0;     // of those, handed to the kernel
  uint64_t replied_ = 0;
};

}  // namespace luwu::transport
