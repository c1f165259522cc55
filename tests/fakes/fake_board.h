// A worker's board as the worker sees it, and an in-memory endpoint through which a daemon writes
// it: either mapped (as over shared memory) or by writes (as over a socket). Completions run inside
// the posting call unless they are held back. A test can wait for the doorbell instead of sleeping.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/transport.h"
#include "common/wire/board.h"
#include "common/wire/window.h"

namespace luwu::fakes {

class FakeBoard {
 public:
  FakeBoard(uint32_t slots, uint64_t shards, bool window = false)
      : slots_(slots), shards_(shards), words_(BoardBytes(slots, shards, window) / 4) {}

  ByteSpan span() { return std::as_writable_bytes(std::span(words_)); }

  uint32_t released(uint32_t slot) { return Load32(BoardReleasedOffset() + 4 * slot); }
  uint64_t published(uint64_t shard) { return Load64(BoardPublishedOffset(slots_) + 8 * shard); }
  WindowPlace place(uint64_t shard, uint64_t version) {
    return WindowPlace::Of(
        Load64(BoardPlacesOffset(slots_, shards_) + 16 * shard + version % 2 * 8));
  }
  uint32_t magic() { return Load32(offsetof(BoardHeader, magic)); }
  uint64_t epoch() { return Load64(offsetof(BoardHeader, epoch)); }
  uint64_t current_step() { return Load64(offsetof(BoardHeader, current_step)); }
  uint64_t beat() { return Load64(offsetof(BoardHeader, beat)); }
  ErrorCode fault() {
    return static_cast<ErrorCode>(-static_cast<int32_t>(Load32(offsetof(BoardHeader, fault_code))));
  }
  std::string fault_text() {
    return reinterpret_cast<const char*>(words_.data()) + offsetof(BoardHeader, fault_text);
  }

  // As a remote write does it: word by word, because the worker looks at the same time.
  void Write(uint64_t offset, ConstByteSpan bytes) {
    for (uint64_t i = 0; i + 4 <= bytes.size(); i += 4) {
      uint32_t word = 0;
      std::memcpy(&word, bytes.data() + i, 4);
      std::atomic_ref<uint32_t>(words_[(offset + i) / 4]).store(word, std::memory_order_release);
    }
  }
  void Ring() {
    MutexLock lock(mutex_);
    ++rings_;
    rung_.NotifyAll();
  }
  uint64_t rings() {
    MutexLock lock(mutex_);
    return rings_;
  }
  // True once `condition` holds, looked at after every doorbell; false after 30 s.
  bool WaitFor(const std::function<bool()>& condition) {
    const TimePoint deadline = DeadlineAfter(30000);
    MutexLock lock(mutex_);
    while (!condition()) {
      if (!rung_.WaitUntil(mutex_, deadline)) return condition();
    }
    return true;
  }

 private:
  uint32_t Load32(uint64_t offset) {
    return std::atomic_ref<uint32_t>(words_[offset / 4]).load(std::memory_order_acquire);
  }
  uint64_t Load64(uint64_t offset) { return Load32(offset) | uint64_t{Load32(offset + 4)} << 32; }

  const uint32_t slots_;
  const uint64_t shards_;
  alignas(64) std::vector<uint32_t> words_;
  Mutex mutex_;
  CondVar rung_;
  uint64_t rings_ LUWU_GUARDED_BY(mutex_) = 0;
};

class FakeEndpoint final : public transport::Endpoint {
 public:
  // `board` outlives the endpoint.
  FakeEndpoint(FakeBoard* board, bool mapped) : board_(board), mapped_(mapped) {}
  ~FakeEndpoint() override { Close(); }

  void Write(std::span<const ConstByteSpan> source, transport::RemoteSpan target, uint32_t,
             transport::Request* request) override {
    if (!Refused(request)) {
      uint64_t offset = target.offset();
      for (const ConstByteSpan& range : source) {
        board_->Write(offset, range);
        offset += range.size();
      }
      Done(request);
    }
  }
  void WriteWithNotify(std::span<const ConstByteSpan> source, transport::RemoteSpan target,
                       uint32_t, uint32_t, transport::Request* request) override {
    if (!Refused(request)) {
      uint64_t offset = target.offset();
      for (const ConstByteSpan& range : source) {
        board_->Write(offset, range);
        offset += range.size();
      }
      board_->Ring();
      Done(request);
    }
  }
  void Read(transport::RemoteSpan, ByteSpan, uint32_t, transport::Request* request) override {
    request->Complete(Error(ErrorCode::kUnsupported, "a daemon does not read from its workers"));
  }
  std::optional<ByteSpan> MapWritable(transport::RegionId region) override {
    if (!mapped_ || region != kRegionBoard) return std::nullopt;
    return board_->span();
  }
  std::optional<ConstByteSpan> MapReadable(transport::RegionId) override { return std::nullopt; }
  void Notify(uint32_t, uint32_t, transport::Request* request) override {
    if (!Refused(request)) {
      board_->Ring();
      Done(request);
    }
  }
  void Close() override {
    std::vector<transport::Request*> held;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      held.swap(held_);
    }
    for (auto* request : held) request->Complete(Error(ErrorCode::kCancelled, "closed"));
  }
  transport::Kind kind() const override {
    return mapped_ ? transport::Kind::kShm : transport::Kind::kTcp;
  }
  bool connected() const override {
    MutexLock lock(mutex_);
    return !closed_ && !failed_;
  }
  uint64_t served_bytes() const override { return served_bytes_.load(); }
  void set_served_bytes(uint64_t bytes) { served_bytes_.store(bytes); }

  // ---- the test's side
  // ---------------------------------------------------------------------------
  void HoldCompletions() {
    MutexLock lock(mutex_);
    hold_ = true;
  }
  // Completes what is held now, with `status`; what is posted meanwhile is held again.
  size_t CompleteHeld(const Status& status) {
    std::vector<transport::Request*> held;
    {
      MutexLock lock(mutex_);
      held.swap(held_);
    }
    for (auto* request : held) request->Complete(status);
    return held.size();
  }
  void Break() {
    MutexLock lock(mutex_);
    failed_ = true;
  }

 private:
  bool Refused(transport::Request* request) {
    {
      MutexLock lock(mutex_);
      if (!closed_ && !failed_) return false;
    }
    request->Complete(Error(ErrorCode::kUnavailable, "the link is down"));
    return true;
  }
  void Done(transport::Request* request) {
    {
      MutexLock lock(mutex_);
      if (hold_) {
        held_.push_back(request);
        return;
      }
    }
    request->Complete(OkStatus());
  }

  FakeBoard* const board_;
  std::atomic<uint64_t> served_bytes_{0};
  const bool mapped_;
  mutable Mutex mutex_;
  bool closed_ LUWU_GUARDED_BY(mutex_) = false;
  bool failed_ LUWU_GUARDED_BY(mutex_) = false;
  bool hold_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<transport::Request*> held_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::fakes
