#include "client/src/slot_request.h"

#include <algorithm>
#include <array>

#include "common/base/crc32c.h"
#include "common/wire/board.h"

namespace luwu::client {
namespace {

constexpr uint64_t kBackoffMsMax = 16;
constexpr std::array<std::byte, 64> kPadding = {};
// Besides payload ranges a gathered slot has padding and the trailer.
constexpr size_t kPayloadRangesMax = transport::kGatherMax - 2;

}  // namespace

uint64_t SlotRequest::PayloadBytes() const {
  return contents_.shard == nullptr ? 0 : contents_.shard->range.elements * DTypeBytes(wire());
}

// Over tcp, segments of the wire's dtype that tile the shard need no copy of ours.
bool SlotRequest::CanGather(const SlotBatch& batch) const {
  if (fabric_->node(node_).is_shm() || contents_.in_place || contents_.shard == nullptr) {
    return false;
  }
  const ShardRange range = contents_.shard->range;
  const std::span<const Segment> inside = Intersecting(batch.segments, range);
  if (inside.size() > kPayloadRangesMax) return false;
  uint64_t done = range.first;
  for (const Segment& segment : inside) {
    const Segment piece = Clip(segment, range);
    if (piece.dtype != wire() || piece.offset != done) return false;
    done = piece.end();
  }
  return done == range.first + range.elements;
}

void SlotRequest::Fill(const Contents& contents, const SlotBatch& batch, const Link& link) {
  contents_ = contents;
  attempts = 0;
  gathered_ = CanGather(batch);
  NodeLink& node = fabric_->node(node_);
  const ByteSpan memory = node.SlotMemory(link, slot_);
  const uint64_t bytes = PayloadBytes();
  const ByteSpan payload = memory.subspan(SlotPayloadOffset(memory.size(), bytes), bytes);
  uint32_t crc = 0;
  if (contents.shard != nullptr && gathered_) {
    for (const Segment& segment : Intersecting(batch.segments, contents.shard->range)) {
      const Segment piece = Clip(segment, contents.shard->range);
      crc = Crc32c({piece.data, piece.count * DTypeBytes(piece.dtype)}, crc);
    }
  } else if (contents.shard != nullptr) {
    if (!contents.in_place) GatherRange(batch.segments, contents.shard->range, wire(), payload);
    if (!node.is_shm()) crc = Crc32c(payload);
  }
  Seal(bytes, crc, !node.is_shm() && contents.shard != nullptr);
  // A late doorbell of the slot's former use may make the daemon look at any moment: it must find
  // the new trailer only when the payload is complete.
  StoreSlotTrailer(trailer_, memory.last(kSlotTrailerBytes));
}

void SlotRequest::Seal(uint64_t payload_bytes, uint32_t payload_crc, bool crc_is_set) {
  const bool no_payload = contents_.shard == nullptr;
  uint16_t flags = contents_.close ? kSlotClose : 0;
  if (no_payload) flags |= kSlotNoPayload;
  if (crc_is_set) flags |= kSlotPayloadCrc;
  uint32_t sequence = 0;
  {
    MonitorLock lock(fabric_->monitor());
    sequence = fabric_->node(node_).ledger(lock).sequence(slot_);
  }
  trailer_ = {};
  trailer_.flags = flags;
  trailer_.epoch = fabric_->options().epoch;
  trailer_.step = contents_.key.step;
  trailer_.layer = contents_.key.layer;
  trailer_.shard = contents_.key.shard;
  trailer_.rank = fabric_->options().rank;
  trailer_.micro_step = contents_.key.micro_step;
  trailer_.slot_sequence = sequence;
  trailer_.payload_bytes = static_cast<uint32_t>(payload_bytes);
  trailer_.payload_crc32c = payload_crc;
  trailer_.dtype = static_cast<uint8_t>(wire());
  SealSlotTrailer(&trailer_);
}

void SlotRequest::BeginPost(const MonitorLock&, SlotBatch* batch) {
  batch_ = batch;
  batch->sent = true;
  ++batch->outstanding[node_];
  ++batch->outstanding_total;
}

void SlotRequest::Post(const SlotBatch& batch, const Link& link) {
  ++attempts;
  const uint32_t lane = slot_;
  NodeLink& node = fabric_->node(node_);
  if (node.is_shm()) {
    link.endpoint().Notify(lane, slot_, this);
    return;
  }
  const uint64_t bytes = PayloadBytes();
  if (gathered_) {
    PostGathered(batch, link, bytes);
    return;
  }
  const ByteSpan memory = node.SlotMemory(link, slot_);
  const uint64_t offset = SlotPayloadOffset(memory.size(), bytes);
  const ConstByteSpan source = memory.subspan(offset);
  const transport::RemoteSpan target(kRegionInbox, slot_ * memory.size() + offset, source.size());
  link.endpoint().WriteWithNotify({&source, 1}, target, lane, slot_, this);
}

void SlotRequest::PostGathered(const SlotBatch& batch, const Link& link, uint64_t payload_bytes) {
  std::array<ConstByteSpan, transport::kGatherMax> ranges;
  size_t count = 0;
  for (const Segment& segment : Intersecting(batch.segments, contents_.shard->range)) {
    const Segment piece = Clip(segment, contents_.shard->range);
    ranges[count++] = {piece.data, piece.count * DTypeBytes(piece.dtype)};
  }
  const uint64_t slot_bytes = fabric_->node(node_).slot_bytes();
  const uint64_t offset = SlotPayloadOffset(slot_bytes, payload_bytes);
  const uint64_t padding = slot_bytes - kSlotTrailerBytes - offset - payload_bytes;
  if (padding > 0) ranges[count++] = ConstByteSpan(kPadding).first(padding);
  ranges[count++] = std::as_bytes(std::span(&trailer_, 1));
  const transport::RemoteSpan target(kRegionInbox, slot_ * slot_bytes + offset,
                                     slot_bytes - offset);
  link.endpoint().WriteWithNotify({ranges.data(), count}, target, slot_, slot_, this);
}

void SlotRequest::PostRenotify(const Link& link) {
  batch_ = nullptr;
  link.endpoint().Notify(slot_, slot_, this);
}

void SlotRequest::AcceptAsDelivered(const MonitorLock& lock) {
  fabric_->node(node_).ledger(lock).Delivered(slot_);
  StepProgress& progress = fabric_->progress(lock);
  if (contents_.shard != nullptr) {
    progress.MarkDelivered(layer(), contents_.shard->shard);
  } else {
    progress.MarkNodeDelivered(layer(), node_);
  }
  fabric_->counters().pushed_bytes.fetch_add(PayloadBytes(), std::memory_order_relaxed);
}

void SlotRequest::Complete(const Status& status) {
  MonitorLock lock(fabric_->monitor());
  NodeLink& node = fabric_->node(node_);
  if (batch_ == nullptr) {
    node.ledger(lock).EndRenotify(slot_);
    fabric_->monitor().Broadcast(lock);
    return;
  }
  SlotBatch& batch = *batch_;
  --batch.outstanding[node_];
  --batch.outstanding_total;
  if (status.ok()) {
    AcceptAsDelivered(lock);
  } else {
    const ErrorCode code = CodeOf(status);
    if (code != ErrorCode::kUnavailable && code != ErrorCode::kCancelled && batch.error.ok()) {
      batch.error = Annotate(status, node.Name());
    }
    // The first repeat is immediate, further ones back off.
    const uint64_t shift = std::min<uint32_t>(attempts, 10);
    retry_at = attempts <= 1 ? std::chrono::steady_clock::now()
                             : DeadlineAfter(std::min(kBackoffMsMax, uint64_t{1} << shift));
    next_failed = batch.failed;
    batch.failed = this;
  }
  batch.waiter.Wake(lock);
}

}  // namespace luwu::client
