// Transfers between memory and extent files, many at once. Two kinds: io_uring on one thread
// "luwu-disk" with at most kDepth pieces under way, and threads with pread and pwrite where
// io_uring is not permitted or the file has no descriptor to give.
//
// Submit does not block; `done` runs on a thread of the queue, must not block, and may submit more.
// How many transfers wait is bounded by the callers' buffers. The destructor ends after the last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/bytes.h"
#include "server/persist/block_file.h"

namespace luwu::persist {

using IoDone = std::function<void(int error)>;  // 0 or a positive errno

struct Transfer {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  BlockFile* file = nullptr;  // lives until `done` has returned
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  IoDone done;
};

class DiskQueue {
 public:
  static constexpr uint32_t kDepth = 32;
  static constexpr uint64_t kPieceBytes = kMiB;

  virtual ~DiskQueue() = default;
  virtual void Submit(Transfer transfer) = 0;
  // A hint: memory that stays mapped until ForgetBuffers, or the queue is gone.
  virtual void AdoptBuffers(ByteSpan memory) = 0;
  // Before it is unmapped; no transfer uses it.
  virtual void ForgetBuffers(ByteSpan memory) = 0;
};

// Null when the kernel does not permit io_uring.
std::unique_ptr<DiskQueue> MakeUringQueue();
std::unique_ptr<DiskQueue> MakeThreadQueue();

// A part of a transfer as one system call after the other: what came back decides what is next.
// Shared by both queues, because short transfers and interruptions mean the same to both.
struct Piece {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint32_t retries = 0;

  enum class Next : uint8_t { kDone, kAgain, kFailed };
  // `result` as of BlockFile; sets *error when it failed.
  Next Advance(int64_t result, Transfer::Kind kind, int* error);
};

}  // namespace luwu::persist
