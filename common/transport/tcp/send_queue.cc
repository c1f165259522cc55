#include "common/transport/tcp/send_queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/transport/store_bytes.h"

namespace luwu::transport {
namespace {

// Each boundary between pieces costs the receiver a system call and a window update: 256 KiB pieces
// took 1.2 times the CPU of these. They still let replies and writes take turns.
constexpr uint64_t kPieceBytes = 1 * kMiB;
static_assert(kPieceBytes <= kPieceBytesMax);

}  // namespace

// ---- SendBatch
// -----------------------------------------------------------------------------------

FrameHeader* SendBatch::AddHeader() {
  FrameHeader* header = &headers_[frames_++];
  iov_[pieces_++] = {header, sizeof *header};
  return header;
}

void SendBatch::AddBytes(ConstByteSpan bytes) {
  // sendmsg only reads; iovec has no const form.
  iov_[pieces_++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

ssize_t SendBatch::Send(int fd, bool* all) {
  msghdr message = {};
  message.msg_iov = &iov_[first_];
  message.msg_iovlen = pieces_ - first_;
  const ssize_t count = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  size_t left = count > 0 ? static_cast<size_t>(count) : 0;
  while (first_ < pieces_ && left >= iov_[first_].iov_len) left -= iov_[first_++].iov_len;
  if (left > 0) {
    iovec& piece = iov_[first_];
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + left;
    piece.iov_len -= left;
  }
  *all = empty();
  return count;
}

// ---- SendQueue
// -----------------------------------------------------------------------------------

void SendQueue::ItemList::Push(PostedItem* item) {
  item->next = nullptr;
  (head == nullptr ? head : tail->next) = item;
  tail = item;
}

PostedItem* SendQueue::ItemList::Pop() {
  PostedItem* item = head;
  head = head->next;
  return item;
}

SendQueue::SendQueue() {
  // The first chunk up front, so that a light load never allocates.
  Release(Allocate());
}

PostedItem* SendQueue::Allocate() {
  if (free_ == nullptr) {
    if (chunks_.size() * kItemsPerChunk >= kItemsMax) return nullptr;
    chunks_.push_back(std::make_unique<Chunk>());
    for (PostedItem& item : *chunks_.back()) Release(&item);
  }
  return std::exchange(free_, free_->next);
}

void SendQueue::Release(PostedItem* item) {
  item->next = free_;
  free_ = item;
}

Status SendQueue::Push(const PostedOp& op, Request* request) {
  PostedItem* item = Allocate();
  if (item == nullptr) {
    return Error(ErrorCode::kResourceExhausted,
                 "{} requests are outstanding on one connection; wait for some to complete",
                 kItemsMax);
  }
  item->request = request;
  item->op = op.op;
  item->notify = op.notify;
  item->immediate = op.immediate;
  item->remote = op.remote;
  item->target = op.target;
  item->progressed = 0;
  item->range = 0;
  item->range_used = 0;
  item->range_count = static_cast<uint32_t>(op.source.size());
  std::copy(op.source.begin(), op.source.end(), item->ranges.begin());
  const bool read = op.op == Op::kRead;
  item->id = read ? next_read_id_++ : next_write_id_++;
  (read ? reads_ : writes_).Push(item);
  return OkStatus();
}

Status SendQueue::PushReply(ConstByteSpan source, uint64_t id) {
  if (replies_count_ == kReadsInFlightMax) {
    return Error(ErrorCode::kResourceExhausted, "the peer has over {} reads outstanding",
                 kReadsInFlightMax);
  }
  replies_[(replies_first_ + replies_count_++) % kReadsInFlightMax] = {source, id, 0};
  return OkStatus();
}

FrameHeader* SendQueue::AddHeader(SendBatch* batch, Op op, uint64_t id) {
  FrameHeader* header = batch->AddHeader();
  *header = {};
  header->magic = kFrameMagic;
  header->op = static_cast<uint8_t>(op);
  header->id = id;
  batched_ += sizeof *header;
  return header;
}

void SendQueue::FillReads(SendBatch* batch) {
  while (reads_.head != nullptr && reads_in_flight_ < kReadsInFlightMax && batch->HasRoom()) {
    PostedItem* item = reads_.Pop();
    FrameHeader* header = AddHeader(batch, Op::kRead, item->id);
    header->region = item->remote.region();
    header->offset = item->remote.offset();
    header->bytes = item->remote.bytes();
    item->end_position = batched_;
    awaiting_replies_.Push(item);
    ++reads_in_flight_;
  }
}

uint64_t SendQueue::FillReply(SendBatch* batch, uint64_t bytes_max) {
  Reply& reply = replies_[replies_first_];
  const uint64_t bytes = std::min({reply.source.size() - reply.progressed, bytes_max, kPieceBytes});
  FrameHeader* header = AddHeader(batch, Op::kReadReply, reply.id);
  header->offset = reply.progressed;
  header->bytes = bytes;
  if (bytes > 0) batch->AddBytes(reply.source.subspan(reply.progressed, bytes));
  batched_ += bytes;
  replied_ += bytes;
  reply.progressed += bytes;
  if (reply.progressed == reply.source.size()) {
    header->flags = kFlagLast;
    replies_first_ = (replies_first_ + 1) % kReadsInFlightMax;
    --replies_count_;
  }
  return bytes;
}

// Adds exactly `bytes` of the item's ranges.
uint64_t SendQueue::Gather(PostedItem* item, uint64_t bytes, SendBatch* batch) {
  uint64_t left = bytes;
  while (left > 0) {
    const ConstByteSpan range = item->ranges[item->range];
    const uint64_t take = std::min<uint64_t>(left, range.size() - item->range_used);
    if (take > 0) batch->AddBytes(range.subspan(item->range_used, take));
    left -= take;
    item->range_used += take;
    if (item->range_used == range.size()) {
      ++item->range;
      item->range_used = 0;
    }
  }
  return bytes;
}

uint64_t SendQueue::FillWrite(SendBatch* batch, uint64_t bytes_max) {
  PostedItem* item = writes_.head;
  const uint64_t left = item->remote.bytes() - item->progressed;
  // A write that the receiver stores word by word must arrive in one piece.
  const uint64_t bytes =
      left <= kWordwiseBytesMax ? left : std::min({left, bytes_max, kPieceBytes});
  FrameHeader* header = AddHeader(batch, item->op, item->id);
  header->region = item->remote.region();
  header->offset = item->remote.offset() + item->progressed;
  header->bytes = bytes;
  Gather(item, bytes, batch);
  batched_ += bytes;
  item->progressed += bytes;
  if (item->progressed == item->remote.bytes()) {
    header->flags = kFlagLast;
    if (item->notify) {
      header->flags |= kFlagNotify;
      header->immediate = item->immediate;
    }
    item->end_position = batched_;
    awaiting_acks_.Push(writes_.Pop());
  }
  return bytes;
}

bool SendQueue::Fill(SendBatch* batch, uint64_t bytes_max) {
  batch->Clear();
  if (ack_id_ != 0) AddHeader(batch, Op::kAck, std::exchange(ack_id_, 0));
  FillReads(batch);
  uint64_t left = bytes_max;
  while (left > 0 && batch->HasRoom()) {
    const bool reply = replies_count_ > 0 && (reply_turn_ || writes_.head == nullptr);
    if (!reply && writes_.head == nullptr) break;
    const uint64_t bytes = reply ? FillReply(batch, left) : FillWrite(batch, left);
    left -= std::min(left, bytes);
    reply_turn_ = !reply;
  }
  return !batch->empty();
}

bool SendQueue::HasWork() const {
  const bool may_read = reads_.head != nullptr && reads_in_flight_ < kReadsInFlightMax;
  return may_read || ack_id_ != 0 || replies_count_ > 0 || writes_.head != nullptr;
}

bool SendQueue::Idle() const {
  return reads_.head == nullptr && writes_.head == nullptr && awaiting_replies_.head == nullptr &&
         awaiting_acks_.head == nullptr;
}

void SendQueue::Complete(PostedItem* item, const Status& result, RequestList* done) {
  done->Push(item->request, result);
  Release(item);
}

Status SendQueue::OnAck(uint64_t id, RequestList* done) {
  uint64_t last = 0;
  while (awaiting_acks_.head != nullptr && awaiting_acks_.head->id <= id &&
         awaiting_acks_.head->end_position <= sent_) {
    last = awaiting_acks_.head->id;
    Complete(awaiting_acks_.Pop(), OkStatus(), done);
  }
  if (last == id && id != 0) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "the peer acknowledged write {}, which is not outstanding", id);
}

PostedItem* SendQueue::AwaitedRead() {
  PostedItem* item = awaiting_replies_.head;
  return item != nullptr && item->end_position <= sent_ ? item : nullptr;
}

void SendQueue::FinishAwaitedRead(RequestList* done) {
  LUWU_CHECK(reads_in_flight_ > 0, "a reply needs a read");
  --reads_in_flight_;
  Complete(awaiting_replies_.Pop(), OkStatus(), done);
}

void SendQueue::FailAll(const Status& result, RequestList* done) {
  for (ItemList* list : {&awaiting_acks_, &writes_, &awaiting_replies_, &reads_}) {
    while (list->head != nullptr) Complete(list->Pop(), result, done);
  }
  reads_in_flight_ = 0;
  replies_count_ = 0;
  ack_id_ = 0;
}

}  // namespace luwu::transport
