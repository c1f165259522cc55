// Keeps one worker's board (common/wire/board.h) up to date over whatever link it has at the
// moment.
//
// Setters only note what changed, under a leaf lock, and may be called with other locks held; Flush
// carries it over and is called with none. Changes coalesce: at most one update is on its way, and
// whatever changed meanwhile goes with the next. Over shm the words are stored straight into the
// client's memory; else they are written from a copy that is stable while it is on its way. A new
// link gets the whole board. A link that fails stops the writer until the next link.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/transport/transport.h"
#include "common/wire/board.h"

namespace luwu {

struct BoardShape {
  uint64_t epoch = 0;
  uint32_t slots = 0;
  uint64_t shards = 0;
  bool window = false;
  uint64_t bytes() const { return BoardBytes(slots, shards, window); }
};

class BoardWriter {
 public:
  explicit BoardWriter(const BoardShape& shape);

  BoardWriter(const BoardWriter&) = delete;
  BoardWriter& operator=(const BoardWriter&) = delete;

  void SetReleased(uint32_t slot, uint32_t count) LUWU_EXCLUDES(mutex_);
  // `words[i]` for local shard i; one word for each shard of the board.
  void SetPublished(const std::vector<uint64_t>& words) LUWU_EXCLUDES(mutex_);
  void SetPublished(uint32_t shard, uint64_t word) LUWU_EXCLUDES(mutex_);
  // Of a board with a window: WindowPlace::word, for even and odd versions of each shard in turn.
  void SetPlaces(const std::vector<uint64_t>& words) LUWU_EXCLUDES(mutex_);
  void SetPlace(uint32_t shard, uint32_t parity, uint64_t word) LUWU_EXCLUDES(mutex_);
  void SetCurrentStep(uint64_t step) LUWU_EXCLUDES(mutex_);
  // Only the first fault stays.
  void SetFault(const Status& fault) LUWU_EXCLUDES(mutex_);

  // Starts writing the whole board through a new link. May run on the progress thread.
  void Attach(std::shared_ptr<transport::Endpoint> endpoint) LUWU_EXCLUDES(mutex_);
  // Ends the writing. After the return nothing of ours uses an endpoint, save for requests that are
  // still on their way. Waits for a Flush in progress: not on the progress thread.
  void Detach() LUWU_EXCLUDES(mutex_);
  void Flush() LUWU_EXCLUDES(mutex_);

 private:
  // A range of bytes, [begin, end).
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool empty() const { return begin >= end; }
    uint64_t bytes() const { return end - begin; }
  };
  // One request on its way; `link` tells late completions of an earlier link apart.
  struct Sent final : transport::Request {
    void Complete(const Status& status) override { owner->OnComplete(status, link); }
    BoardWriter* owner = nullptr;
    uint64_t link = 0;
  };
  // What one round of Flush posts, settled under the lock.
  struct Round {
    std::shared_ptr<transport::Endpoint> endpoint;
    bool mapped = false;
    Range published;
  };

  void SetWords(const Range& range, const uint64_t* words) LUWU_REQUIRES(mutex_);
  bool BeginRound(Round* round) LUWU_EXCLUDES(mutex_);
  void Post(const Round& round) LUWU_EXCLUDES(mutex_);
  void EndRound() LUWU_EXCLUDES(mutex_);
  void StoreMapped() LUWU_REQUIRES(mutex_);
  void OnComplete(const Status& status, uint64_t link) LUWU_EXCLUDES(mutex_);
  BoardHeader& header() LUWU_REQUIRES(mutex_);
  bool dirty() const LUWU_REQUIRES(mutex_) { return head_dirty_ || !changed_.empty(); }

  const BoardShape shape_;
  const Range head_;  // header and released words
  const Range published_;
  const Range places_;

  mutable Mutex mutex_;
  CondVar round_ended_;
  // What the board should hold, in words of 64 bits so that it is aligned.
  std::vector<uint64_t> image_ LUWU_GUARDED_BY(mutex_);
  // What is on its way: written under the lock while nothing is (`in_flight_` is 0).
  std::vector<uint64_t> wire_;
  bool head_dirty_ LUWU_GUARDED_BY(mutex_) = false;
  // Published words and places that were set and not written yet.
  Range changed_ LUWU_GUARDED_BY(mutex_);
  std::shared_ptr<transport::Endpoint> endpoint_ LUWU_GUARDED_BY(mutex_);
  ByteSpan mapped_ LUWU_GUARDED_BY(mutex_);
  bool notify_due_ LUWU_GUARDED_BY(mutex_) = false;  // stored, the doorbell has not rung yet
  uint64_t link_ LUWU_GUARDED_BY(mutex_) = 0;
  bool failed_ LUWU_GUARDED_BY(mutex_) = false;
  uint32_t in_flight_ LUWU_GUARDED_BY(mutex_) = 0;
  bool posting_ LUWU_GUARDED_BY(mutex_) = false;
  Sent sent_published_;
  Sent sent_head_;
};

}  // namespace luwu
