#include "server/persist/disk_queue.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace luwu::persist {
namespace {

constexpr uint32_t kRetriesMax = 1000;  // of one piece without progress; then the device is broken
constexpr uint32_t kThreads = 4;

class ThreadQueue final : public DiskQueue {
 public:
  ThreadQueue() {
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }
  ~ThreadQueue() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(Transfer transfer) override {
    {
      const MutexLock lock(mutex_);
      waiting_.push_back(std::move(transfer));
    }
    changed_.NotifyOne();
  }
  void AdoptBuffers(ByteSpan) override {}
  void ForgetBuffers(ByteSpan) override {}

 private:
  void Run() {
    ::pthread_setname_np(::pthread_self(), "luwu-disk");
    while (true) {
      Transfer transfer;
      {
        const MutexLock lock(mutex_);
        while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
        if (waiting_.empty()) return;
        transfer = std::move(waiting_.front());
        waiting_.pop_front();
      }
      transfer.done(Perform(transfer));
    }
  }

  static int Perform(const Transfer& transfer) {
    Piece piece{transfer.data, transfer.bytes, transfer.offset};
    while (true) {
      const ByteSpan span(piece.data, std::min(piece.bytes, kPieceBytes));
      const int64_t result = transfer.kind == Transfer::Kind::kRead
                                 ? transfer.file->ReadAt(span, piece.offset)
                                 : transfer.file->WriteAt(span, piece.offset);
      int error = 0;
      switch (piece.Advance(result, transfer.kind, &error)) {
        case Piece::Next::kDone:
          return 0;
        case Piece::Next::kFailed:
          return error;
        case Piece::Next::kAgain:
          break;
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Transfer> waiting_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Piece::Next Piece::Advance(int64_t result, Transfer::Kind kind, int* error) {
  if (result == -EINTR || result == -EAGAIN) {
    if (++retries <= kRetriesMax) return Next::kAgain;
    *error = EIO;
    return Next::kFailed;
  }
  if (result < 0) {
    *error = static_cast<int>(-result);
    return Next::kFailed;
  }
  if (result == 0) {
    // A write of nothing without an error is a full device; a read of nothing the end of the file.
    *error = kind == Transfer::Kind::kWrite ? ENOSPC : ENODATA;
    return Next::kFailed;
  }
  // Direct transfers continue at whole blocks: what is left of a torn one is done again.
  uint64_t advanced = static_cast<uint64_t>(result);
  if (advanced < bytes) advanced &= ~uint64_t{4095};
  if (advanced == 0 && ++retries > kRetriesMax) {
    *error = EIO;
    return Next::kFailed;
  }
  if (advanced > 0) retries = 0;
  data += advanced;
  offset += advanced;
  bytes -= advanced;
  return bytes == 0 ? Next::kDone : Next::kAgain;
}

std::unique_ptr<DiskQueue> MakeThreadQueue() { return std::make_unique<ThreadQueue>(); }

}  // namespace luwu::persist
