#include <liburing.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"
#include "server/persist/disk_queue.h"

namespace luwu::persist {
namespace {

constexpr uint32_t kBufferSlots = 256;
constexpr uint64_t kBufferBytesMax = kGiB;  // of one registered buffer, a limit of the kernel

// A transfer that is being cut into pieces.
struct Running {
  Transfer transfer;
  uint64_t submitted = 0;  // bytes handed out in pieces
  uint32_t pieces = 0;     // under way
  int error = 0;
};

struct RunningPiece {
  Piece piece;
  Running* owner = nullptr;
};

class UringQueue final : public DiskQueue {
 public:
  // False when the kernel refuses; the object is of no use then.
  bool Start() {
    wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!wake_.valid()) return false;
    // One more entry for the read of the eventfd.
    if (::io_uring_queue_init(kDepth * 2, &ring_, IORING_SETUP_CLAMP) != 0) return false;
    ring_made_ = true;
    buffers_usable_ = ::io_uring_register_buffers_sparse(&ring_, kBufferSlots) == 0;
    if (buffers_usable_) buffers_.resize(kBufferSlots);
    pieces_.resize(kDepth);
    for (RunningPiece& piece : pieces_) free_pieces_.push_back(&piece);
    thread_ = std::thread([this] { Run(); });
    return true;
  }
  ~UringQueue() override {
    if (thread_.joinable()) {
      {
        const MutexLock lock(mutex_);
        stopping_ = true;
      }
      Wake();
      thread_.join();
    }
    if (ring_made_) ::io_uring_queue_exit(&ring_);
  }

  void Submit(Transfer transfer) override {
    {
      const MutexLock lock(mutex_);
      arrived_.push_back(std::move(transfer));
    }
    Wake();
  }
  void AdoptBuffers(ByteSpan memory) override { Announce({memory, true}); }
  void ForgetBuffers(ByteSpan memory) override { Announce({memory, false}); }

 private:
  struct BufferNews {
    ByteSpan memory;
    bool adopt = false;
  };

  void Announce(BufferNews news) {
    {
      const MutexLock lock(mutex_);
      buffer_news_.push_back(news);
    }
    Wake();
  }

  void Wake() {
    const uint64_t one = 1;
    const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
    LUWU_CHECK(put == sizeof(one), "an eventfd takes a count");
  }

  void Run() {
    ::pthread_setname_np(::pthread_self(), "luwu-disk");
    while (TakeArrivals() || !active_.empty() || !again_.empty() || in_flight_ > 0) {
      StartPieces();
      ArmWake();
      const int submitted = ::io_uring_submit_and_wait(&ring_, 1);
      LUWU_CHECK(
          submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY,
          "io_uring takes submissions");
      Reap();
    }
  }

  // False when the queue is stopping and nothing came.
  bool TakeArrivals() {
    std::vector<BufferNews> buffer_news;
    bool more = true;
    {
      const MutexLock lock(mutex_);
      for (Transfer& transfer : arrived_) {
        active_.push_back(TakeRunning());
        active_.back()->transfer = std::move(transfer);
      }
      more = !arrived_.empty() || !stopping_;
      arrived_.clear();
      buffer_news.swap(buffer_news_);
    }
    // Before any transfer that came after it is started.
    for (const BufferNews& news : buffer_news) {
      Unregister(news.memory);
      if (news.adopt) Register(news.memory);
    }
    return more;
  }

  // Zero, or a negative errno.
  int SetSlot(size_t slot, iovec buffer) {
    const __u64 tag = 0;
    const int done = ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot),
                                                            &buffer, &tag, 1);
    if (done < 0) return done;
    buffers_[slot] = buffer;
    return 0;
  }

  void Register(ByteSpan memory) {
    if (!buffers_usable_) return;
    for (uint64_t at = 0; at < memory.size(); at += kBufferBytesMax) {
      const auto free = std::find_if(buffers_.begin(), buffers_.end(),
                                     [](const iovec& buffer) { return buffer.iov_len == 0; });
      if (free == buffers_.end()) return;
      const iovec part{memory.data() + at, std::min<uint64_t>(memory.size() - at, kBufferBytesMax)};
      const int done = SetSlot(static_cast<size_t>(free - buffers_.begin()), part);
      if (done == 0) continue;
      // A limit on locked memory, usually; transfers work without.
      LogInfo("storage_buffers_not_registered", "bytes={} errno={}", memory.size(), -done);
      buffers_usable_ = false;
    }
  }

  // The kernel holds the pages of a buffer, not its addresses: once other memory is mapped there,
  // transfers would go to the old pages.
  void Unregister(ByteSpan memory) {
    for (size_t slot = 0; slot < buffers_.size(); ++slot) {
      const auto* const begin = static_cast<const std::byte*>(buffers_[slot].iov_base);
      const bool apart =
          begin + buffers_[slot].iov_len <= memory.data() || memory.data() + memory.size() <= begin;
      if (buffers_[slot].iov_len == 0 || apart) continue;
      LUWU_CHECK(SetSlot(slot, {nullptr, 0}) == 0, "a registered buffer can be given up");
    }
  }

  Running* TakeRunning() {
    if (free_running_.empty()) {
      running_.push_back(std::make_unique<Running>());
      free_running_.push_back(running_.back().get());
    }
    Running* const running = free_running_.back();
    free_running_.pop_back();
    *running = Running();
    return running;
  }

  void StartPieces() {
    while (!again_.empty()) {
      Prepare(again_.back());
      again_.pop_back();
    }
    while (!active_.empty() && !free_pieces_.empty()) {
      Running* const running = active_.front();
      const uint64_t left = running->transfer.bytes - running->submitted;
      RunningPiece* const piece = free_pieces_.back();
      free_pieces_.pop_back();
      piece->owner = running;
      piece->piece = Piece{running->transfer.data + running->submitted, std::min(left, kPieceBytes),
                           running->transfer.offset + running->submitted};
      running->submitted += piece->piece.bytes;
      ++running->pieces;
      if (running->submitted == running->transfer.bytes) active_.pop_front();
      Prepare(piece);
    }
  }

  // The index of the registered buffer that holds the piece, -1 when none does.
  int BufferOf(const Piece& piece) const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto* const begin = static_cast<const std::byte*>(buffers_[i].iov_base);
      if (buffers_[i].iov_len > 0 && piece.data >= begin &&
          piece.data + piece.bytes <= begin + buffers_[i].iov_len)
        return static_cast<int>(i);
    }
    return -1;
  }

  void Prepare(RunningPiece* running) {
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    LUWU_CHECK(sqe != nullptr, "the ring has room for every piece");
    const Piece& piece = running->piece;
    const Transfer& transfer = running->owner->transfer;
    const int fd = transfer.file->descriptor();
    const auto bytes = static_cast<unsigned>(piece.bytes);
    const int buffer = BufferOf(piece);
    if (transfer.kind == Transfer::Kind::kRead) {
      if (buffer >= 0)
        ::io_uring_prep_read_fixed(sqe, fd, piece.data, bytes, piece.offset, buffer);
      else
        ::io_uring_prep_read(sqe, fd, piece.data, bytes, piece.offset);
    } else {
      if (buffer >= 0)
        ::io_uring_prep_write_fixed(sqe, fd, piece.data, bytes, piece.offset, buffer);
      else
        ::io_uring_prep_write(sqe, fd, piece.data, bytes, piece.offset);
    }
    ::io_uring_sqe_set_data(sqe, running);
    ++in_flight_;
  }

  void ArmWake() {
    if (wake_armed_) return;
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    LUWU_CHECK(sqe != nullptr, "the ring has room for its wake-up");
    ::io_uring_prep_read(sqe, wake_.get(), &wake_count_, sizeof(wake_count_), 0);
    ::io_uring_sqe_set_data(sqe, nullptr);
    wake_armed_ = true;
  }

  void Reap() {
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* const running = static_cast<RunningPiece*>(::io_uring_cqe_get_data(cqe));
      const int64_t result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (running == nullptr) {
        wake_armed_ = false;
        continue;
      }
      --in_flight_;
      Complete(running, result);
    }
  }

  void Complete(RunningPiece* piece, int64_t result) {
    Running* const owner = piece->owner;
    int error = 0;
    if (piece->piece.Advance(result, owner->transfer.kind, &error) == Piece::Next::kAgain) {
      again_.push_back(piece);
      return;
    }
    if (error != 0 && owner->error == 0) {
      owner->error = error;
      // What has not been handed out yet need not be.
      const auto waiting = std::find(active_.begin(), active_.end(), owner);
      if (waiting != active_.end()) active_.erase(waiting);
      owner->submitted = owner->transfer.bytes;
    }
    free_pieces_.push_back(piece);
    if (--owner->pieces > 0 || owner->submitted < owner->transfer.bytes) return;
    const IoDone done = std::move(owner->transfer.done);
    const int outcome = owner->error;
    free_running_.push_back(owner);
    done(outcome);
  }

  io_uring ring_{};
  bool ring_made_ = false;
  UniqueFd wake_;
  std::thread thread_;

  Mutex mutex_;
  std::vector<Transfer> arrived_ LUWU_GUARDED_BY(mutex_);
  std::vector<BufferNews> buffer_news_ LUWU_GUARDED_BY(mutex_);
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;

  // The thread's own.
  bool buffers_usable_ = false;
  std::vector<iovec> buffers_;  // by slot; length 0: free
  std::vector<RunningPiece> pieces_;
  std::vector<RunningPiece*> free_pieces_;
  std::vector<RunningPiece*> again_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<Running*> free_running_;
  std::deque<Running*> active_;  // not all handed out yet
  uint32_t in_flight_ = 0;
  uint64_t wake_count_ = 0;
  bool wake_armed_ = false;
};

}  // namespace

std::unique_ptr<DiskQueue> MakeUringQueue() {
  auto queue = std::make_unique<UringQueue>();
  if (!queue->Start()) return nullptr;
  return queue;
}

}  // namespace luwu::persist
