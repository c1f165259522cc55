#include "server/session/board_writer.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>

#include "common/base/check.h"

namespace luwu {
namespace {

constexpr uint32_t kBoardLane = 0;

// Words of the client's memory, which it reads while we store. `offset` lies within `board`.
void StoreWord64(ByteSpan board, uint64_t offset, uint64_t value) {
  auto* word = reinterpret_cast<uint64_t*>(board.data() + offset);
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
}
void StoreWord32(ByteSpan board, uint64_t offset, uint32_t value) {
  auto* word = reinterpret_cast<uint32_t*>(board.data() + offset);
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}

}  // namespace

BoardWriter::BoardWriter(const BoardShape& shape)
    : shape_(shape),
      head_{0, BoardReleasedOffset() + uint64_t{4} * shape.slots},
      published_{BoardPublishedOffset(shape.slots), BoardPlacesOffset(shape.slots, shape.shards)},
      places_{published_.end, published_.end + (shape.window ? 16 * shape.shards : 0)},
      image_(shape.bytes() / 8),
      wire_(image_.size()) {
  sent_published_.owner = this;
  sent_head_.owner = this;
  MutexLock lock(mutex_);
  header().magic = kBoardMagic;
  header().epoch = shape.epoch;
}

BoardHeader& BoardWriter::header() { return *reinterpret_cast<BoardHeader*>(image_.data()); }

void BoardWriter::SetReleased(uint32_t slot, uint32_t count) {
  LUWU_CHECK(slot < shape_.slots, "a slot of the board");
  MutexLock lock(mutex_);
  std::memcpy(std::as_writable_bytes(std::span(image_)).data() + BoardReleasedOffset() + 4 * slot,
              &count, sizeof(count));
  head_dirty_ = true;
}

void BoardWriter::SetWords(const Range& range, const uint64_t* words) {
  std::memcpy(&image_[range.begin / 8], words, range.bytes());
  if (changed_.empty()) changed_ = range;
  changed_ = {std::min(changed_.begin, range.begin), std::max(changed_.end, range.end)};
}

void BoardWriter::SetPublished(const std::vector<uint64_t>& words) {
  LUWU_CHECK(words.size() == shape_.shards, "one word for each shard of the board");
  if (words.empty()) return;
  MutexLock lock(mutex_);
  SetWords(published_, words.data());
}

void BoardWriter::SetPublished(uint32_t shard, uint64_t word) {
  LUWU_CHECK(shard < shape_.shards, "a shard of the board");
  const uint64_t begin = published_.begin + 8 * uint64_t{shard};
  MutexLock lock(mutex_);
  SetWords({begin, begin + 8}, &word);
}

void BoardWriter::SetPlaces(const std::vector<uint64_t>& words) {
  LUWU_CHECK(words.size() == places_.bytes() / 8, "two words for each shard of the board");
  if (words.empty()) return;
  MutexLock lock(mutex_);
  SetWords(places_, words.data());
}

void BoardWriter::SetPlace(uint32_t shard, uint32_t parity, uint64_t word) {
  LUWU_CHECK(shape_.window && shard < shape_.shards && parity < 2, "a place of the board");
  const uint64_t begin = places_.begin + 16 * uint64_t{shard} + 8 * uint64_t{parity};
  MutexLock lock(mutex_);
  SetWords({begin, begin + 8}, &word);
}

void BoardWriter::SetCurrentStep(uint64_t step) {
  MutexLock lock(mutex_);
  header().current_step = step;
  head_dirty_ = true;
}

void BoardWriter::SetFault(const Status& fault) {
  MutexLock lock(mutex_);
  BoardHeader& head = header();
  if (head.fault_code != 0) return;
  const std::string text = MessageOf(fault);
  std::memcpy(head.fault_text, text.data(), std::min(text.size(), sizeof(head.fault_text) - 1));
  head.fault_code = static_cast<uint32_t>(-static_cast<int32_t>(CodeOf(fault)));
  head_dirty_ = true;
}

void BoardWriter::Attach(std::shared_ptr<transport::Endpoint> endpoint) {
  MutexLock lock(mutex_);
  mapped_ = {};
  if (const auto mapped = endpoint->MapWritable(kRegionBoard)) {
    if (mapped->size() >= image_.size() * 8) mapped_ = *mapped;
  }
  endpoint_ = std::move(endpoint);
  ++link_;
  failed_ = false;
  notify_due_ = false;
  head_dirty_ = true;
  changed_ = {published_.begin, places_.end};
}

void BoardWriter::Detach() {
  MutexLock lock(mutex_);
  endpoint_ = nullptr;
  mapped_ = {};
  // No new round begins without an endpoint, and posting does not block: the wait is short.
  while (posting_) round_ended_.Wait(mutex_);
}

void BoardWriter::Flush() {
  Round round;
  while (BeginRound(&round)) {
    Post(round);
    round.endpoint = nullptr;
    EndRound();
  }
}

bool BoardWriter::BeginRound(Round* round) {
  MutexLock lock(mutex_);
  if (endpoint_ == nullptr || failed_) return false;
  const bool mapped = !mapped_.empty();
  if (mapped && dirty()) {
    StoreMapped();
    notify_due_ = true;
  }
  if (posting_ || in_flight_ > 0) return false;  // goes with the next round
  if (mapped ? !notify_due_ : !dirty()) return false;
  round->endpoint = endpoint_;
  round->mapped = mapped;
  round->published = {};
  in_flight_ = 1;
  if (mapped) {
    notify_due_ = false;
  } else {
    ++header().beat;
    std::memcpy(wire_.data(), image_.data(), head_.bytes());
    if (!changed_.empty()) {
      round->published = changed_;
      std::memcpy(&wire_[changed_.begin / 8], &image_[changed_.begin / 8], changed_.bytes());
      in_flight_ = 2;
    }
    head_dirty_ = false;
    changed_ = {};
  }
  posting_ = true;
  sent_head_.link = sent_published_.link = link_;
  return true;
}

void BoardWriter::StoreMapped() {
  ++header().beat;
  for (uint64_t offset = changed_.begin; offset < changed_.end; offset += 8) {
    StoreWord64(mapped_, offset, image_[offset / 8]);
  }
  const BoardHeader& head = header();
  const ConstByteSpan bytes = std::as_bytes(std::span(image_));
  for (uint64_t offset = BoardReleasedOffset(); offset < head_.end; offset += 4) {
    uint32_t count = 0;
    std::memcpy(&count, bytes.data() + offset, sizeof(count));
    StoreWord32(mapped_, offset, count);
  }
  StoreWord64(mapped_, offsetof(BoardHeader, epoch), head.epoch);
  StoreWord64(mapped_, offsetof(BoardHeader, current_step), head.current_step);
  StoreWord32(mapped_, offsetof(BoardHeader, magic), head.magic);
  StoreWord64(mapped_, offsetof(BoardHeader, beat), head.beat);
  if (head.fault_code != 0) {
    std::memcpy(mapped_.data() + offsetof(BoardHeader, fault_text), head.fault_text,
                sizeof(head.fault_text));
    StoreWord32(mapped_, offsetof(BoardHeader, fault_code), head.fault_code);
  }
  head_dirty_ = false;
  changed_ = {};
}

void BoardWriter::Post(const Round& round) {
  if (round.mapped) {
    round.endpoint->Notify(kBoardLane, kNotifyBoard, &sent_head_);
    return;
  }
  // The lane keeps the order: whoever sees the doorbell sees the published words too.
  const ConstByteSpan wire = std::as_bytes(std::span(wire_));
  const auto post = [&](const Range& range, bool notify, transport::Request* request) {
    const ConstByteSpan source = wire.subspan(range.begin, range.bytes());
    const transport::RemoteSpan target(kRegionBoard, range.begin, range.bytes());
    if (notify) {
      round.endpoint->WriteWithNotify({&source, 1}, target, kBoardLane, kNotifyBoard, request);
    } else {
      round.endpoint->Write({&source, 1}, target, kBoardLane, request);
    }
  };
  if (!round.published.empty()) post(round.published, false, &sent_published_);
  post(head_, true, &sent_head_);
}

void BoardWriter::EndRound() {
  MutexLock lock(mutex_);
  posting_ = false;
  round_ended_.NotifyAll();
}

void BoardWriter::OnComplete(const Status& status, uint64_t link) {
  {
    MutexLock lock(mutex_);
    --in_flight_;
    if (!status.ok() && link == link_) failed_ = true;
    if (in_flight_ > 0) return;
  }
  Flush();
}

}  // namespace luwu
