// Writes to files on a thread of its own, so that the next piece is read and converted meanwhile
// and the device always has something to do. A few buffers, so that what waits is bounded.
//
// One thread at a time calls; the files given to Write are not touched by anybody else until Drain.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/interchange/output_file.h"

namespace luwu::interchange {

class WriteBehind {
 public:
  static StatusOr<std::unique_ptr<WriteBehind>> Create(uint64_t buffer_bytes);
  ~WriteBehind();  // writes what was given to it first
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // The buffer to fill next, page-aligned; waits until there is one. The error of a former write,
  // which ends everything.
  StatusOr<ByteSpan> Buffer() LUWU_EXCLUDES(mutex_);
  // `bytes` lie in that buffer.
  void Write(OutputFile* file, uint64_t offset, ConstByteSpan bytes) LUWU_EXCLUDES(mutex_);
  // Waits until everything is written; the first error.
  Status Drain() LUWU_EXCLUDES(mutex_);

 private:
  static constexpr uint32_t kBuffers = 3;
  struct Piece {
    OutputFile* file = nullptr;
    uint64_t offset = 0;
    ConstByteSpan bytes;
  };
  WriteBehind() = default;
  void Run() LUWU_EXCLUDES(mutex_);

  std::array<Mapping, kBuffers> buffers_;
  uint32_t next_ = 0;  // of buffers_
  Mutex mutex_;
  CondVar changed_;
  // Waiting or being written, in the order of their buffers.
  std::deque<Piece> pieces_ LUWU_GUARDED_BY(mutex_);
  Status error_ LUWU_GUARDED_BY(mutex_);
  bool ending_ LUWU_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace luwu::interchange
