#include "common/transport/verbs/work_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

// From this size on a completion costs nothing beside the bytes, and frees staging memory early.
constexpr uint32_t kSignalBytes = 64 * kKiB;
constexpr uint32_t kUnsignalledMax = 16;
// Such a read waits for all before it: a header vouches for the bytes that were read before it, and
// a NIC may begin a READ while it still gathers the bytes of the one before.
constexpr uint64_t kFencedBytesMax = 4 * kKiB;

}  // namespace

WorkQueue::WorkQueue(VerbsChannel* channel, StagingPool* staging, uint32_t index)
    : channel_(channel),
      staging_(staging),
      index_(index),
      entries_(channel->sends()),
      chain_(std::make_unique<std::array<Slot, kChain>>()) {
  Release(Allocate());  // so that a light load never allocates
}

WorkQueue::Item* WorkQueue::Allocate() {
  if (free_ == nullptr) {
    if (chunks_.size() * kItemsPerChunk >= kItemsMax) return nullptr;
    chunks_.push_back(std::make_unique<std::array<Item, kItemsPerChunk>>());
    for (Item& item : *chunks_.back()) Release(&item);
  }
  return std::exchange(free_, free_->next);
}

void WorkQueue::Release(Item* item) {
  item->next = free_;
  free_ = item;
}

Status WorkQueue::Push(const VerbsRequest& op, Request* request) {
  Item* item = Allocate();
  if (item == nullptr) {
    return Error(ErrorCode::kResourceExhausted,
                 "{} requests are outstanding on one queue pair; wait for some to complete",
                 kItemsMax);
  }
  item->next = nullptr;
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
  (head_ == nullptr ? head_ : tail_->next) = item;
  tail_ = item;
  return OkStatus();
}

Status WorkQueue::Dispatch() {
  if (head_ == nullptr) return OkStatus();
  pinned_ = channel_->domain().pinned();
  while (head_ != nullptr) {
    uint32_t count = 0;
    while (head_ != nullptr && count < kChain && next_ + count - first_ < entries_.size()) {
      Slot& slot = (*chain_)[count];
      Entry& entry = entries_[(next_ + count) % entries_.size()];
      entry = {};
      if (!BuildNext(&slot, &entry)) break;
      slot.wr.wr_id = (next_ + count) << 8 | index_;
      if (MustSignal(entry)) slot.wr.send_flags |= IBV_SEND_SIGNALED;
      unsignalled_ = (slot.wr.send_flags & IBV_SEND_SIGNALED) != 0 ? 0 : unsignalled_ + 1;
      ++count;
    }
    if (count == 0) return OkStatus();
    RETURN_IF_ERROR(Post(count));
  }
  return OkStatus();
}

bool WorkQueue::MustSignal(const Entry& entry) const {
  return entry.bytes >= kSignalBytes || unsignalled_ + 1 >= kUnsignalledMax;
}

Status WorkQueue::Post(uint32_t count) {
  for (uint32_t i = 0; i + 1 < count; ++i) (*chain_)[i].wr.next = &(*chain_)[i + 1].wr;
  ibv_send_wr& last = (*chain_)[count - 1].wr;
  last.next = nullptr;
  last.send_flags |= IBV_SEND_SIGNALED;  // nothing is left without a completion behind it
  unsignalled_ = 0;
  next_ += count;
  ibv_send_wr* bad = nullptr;
  const int error =
      channel_->api()->PostSend(channel_->queue_pairs()[index_].get(), &(*chain_)[0].wr, &bad);
  if (error == 0) return OkStatus();
  return Error(ErrorCode::kUnavailable, "ibv_post_send failed: {}", ErrnoText(error));
}

bool WorkQueue::BuildNext(Slot* slot, Entry* entry) {
  Item* item = head_;
  slot->wr = {};
  slot->wr.sg_list = slot->sges.data();
  uint64_t bytes_max = 0;
  if (item->remote.bytes() > item->progressed) {
    const RemotePlace place = channel_->Place(item->remote, item->progressed, index_);
    slot->wr.wr.rdma.remote_addr = place.address;
    slot->wr.wr.rdma.rkey = place.rkey;
    bytes_max = std::min(place.bytes, channel_->message_bytes());
    const bool built = item->op == VerbsOp::kRead ? BuildRead(item, bytes_max, slot, entry)
                                                  : BuildWrite(item, bytes_max, slot, entry);
    if (!built) return false;
  } else {
    slot->wr.opcode = IBV_WR_RDMA_WRITE;  // of nothing, to carry the immediate
  }
  item->progressed += entry->bytes;
  if (item->progressed < item->remote.bytes()) return true;
  entry->last_of = item;
  if (item->notify) {
    slot->wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    slot->wr.imm_data = htobe32(item->immediate);
  }
  head_ = item->next;
  return true;
}

bool WorkQueue::BuildRead(Item* item, uint64_t bytes_max, Slot* slot, Entry* entry) {
  slot->wr.opcode = IBV_WR_RDMA_READ;
  if (item->remote.bytes() <= kFencedBytesMax) slot->wr.send_flags = IBV_SEND_FENCE;
  slot->wr.num_sge = 1;
  std::byte* to = item->target + item->progressed;
  ibv_sge& sge = slot->sges[0];
  uint64_t bytes = PinnedAt(to, bytes_max, &sge.lkey);
  if (bytes > 0) {
    sge.addr = reinterpret_cast<uint64_t>(to);
  } else {
    entry->staged = staging_->Take(bytes_max);
    if (entry->staged.data == nullptr) return false;
    bytes = std::min<uint64_t>(bytes_max, entry->staged.bytes);
    entry->copy_to = to;
    sge.addr = reinterpret_cast<uint64_t>(entry->staged.data);
    sge.lkey = staging_->lkey();
  }
  sge.length = entry->bytes = static_cast<uint32_t>(bytes);
  return true;
}

bool WorkQueue::BuildWrite(Item* item, uint64_t bytes_max, Slot* slot, Entry* entry) {
  slot->wr.opcode = IBV_WR_RDMA_WRITE;
  const uint64_t whole = item->remote.bytes();
  uint64_t bytes = 0;
  if (whole <= channel_->inline_bytes() && whole == bytes_max) {
    bytes = whole;
    Gather(item, slot->inline_bytes.data(), bytes);
    slot->sges[0] = {reinterpret_cast<uint64_t>(slot->inline_bytes.data()),
                     static_cast<uint32_t>(bytes), 0};
    slot->wr.num_sge = 1;
    slot->wr.send_flags = IBV_SEND_INLINE;
  } else {
    // A word that is written alone arrives in one message, however it was gathered.
    bytes = whole > sizeof(uint64_t) ? TakePinned(item, bytes_max, slot) : 0;
    if (bytes == 0) {
      entry->staged = staging_->Take(bytes_max);
      if (entry->staged.data == nullptr) return false;
      bytes = std::min<uint64_t>(bytes_max, entry->staged.bytes);
      Gather(item, entry->staged.data, bytes);
      slot->sges[0] = {reinterpret_cast<uint64_t>(entry->staged.data), static_cast<uint32_t>(bytes),
                       staging_->lkey()};
      slot->wr.num_sge = 1;
    }
  }
  entry->bytes = static_cast<uint32_t>(bytes);
  return true;
}

// How many of the bytes at `at` lie in one pinned range.
uint64_t WorkQueue::PinnedAt(const std::byte* at, uint64_t bytes, uint32_t* lkey) const {
  for (const PinnedRange& range : *pinned_) {
    if (at < range.begin || at >= range.end || range.mr.expired()) continue;
    *lkey = range.lkey;
    return std::min<uint64_t>(bytes, static_cast<uint64_t>(range.end - at));
  }
  return 0;
}

// As many of the item's next bytes as lie in pinned memory and fit one work request.
uint64_t WorkQueue::TakePinned(Item* item, uint64_t bytes_max, Slot* slot) {
  uint64_t total = 0;
  auto& count = slot->wr.num_sge;
  while (total < bytes_max && count < static_cast<int>(channel_->sges())) {
    const ConstByteSpan rest = item->ranges[item->range].subspan(item->range_used);
    if (!rest.empty()) {
      ibv_sge& sge = slot->sges[static_cast<size_t>(count)];
      const uint64_t bytes =
          PinnedAt(rest.data(), std::min<uint64_t>(rest.size(), bytes_max - total), &sge.lkey);
      if (bytes == 0) break;
      sge.addr = reinterpret_cast<uint64_t>(rest.data());
      sge.length = static_cast<uint32_t>(bytes);
      ++count;
      total += bytes;
      item->range_used += bytes;
      if (bytes < rest.size()) continue;
    }
    ++item->range;
    item->range_used = 0;
  }
  return total;
}

// Copies exactly the next `bytes` of the item's ranges.
void WorkQueue::Gather(Item* item, std::byte* to, uint64_t bytes) {
  while (bytes > 0) {
    const ConstByteSpan rest = item->ranges[item->range].subspan(item->range_used);
    const uint64_t take = std::min<uint64_t>(bytes, rest.size());
    if (take > 0) std::memcpy(to, rest.data(), take);
    to += take;
    bytes -= take;
    item->range_used += take;
    if (take < rest.size()) return;
    ++item->range;
    item->range_used = 0;
  }
}

void WorkQueue::Settle(uint64_t id, std::vector<Settled>* settled) {
  while (first_ != next_ && first_ <= id) {
    Entry& entry = entries_[first_++ % entries_.size()];
    settled->push_back({this, entry.staged, entry.copy_to, entry.bytes, entry.last_of});
  }
}

void WorkQueue::Finish(const Settled& settled, RequestList* done) {
  if (settled.staged.data != nullptr) staging_->Give(settled.staged);
  if (settled.item != nullptr) Complete(static_cast<Item*>(settled.item), OkStatus(), done);
}

void WorkQueue::Complete(Item* item, const Status& result, RequestList* done) {
  done->Push(item->request, result);
  Release(item);
}

void WorkQueue::FailAll(const Status& result, RequestList* done) {
  for (; first_ != next_; ++first_) {
    const Entry& entry = entries_[first_ % entries_.size()];
    if (entry.last_of != nullptr) Complete(entry.last_of, result, done);
  }
  while (head_ != nullptr) Complete(std::exchange(head_, head_->next), result, done);
}

}  // namespace luwu::transport
