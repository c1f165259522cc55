#include "server/interchange/write_behind.h"

#include <pthread.h>

namespace luwu::interchange {

StatusOr<std::unique_ptr<WriteBehind>> WriteBehind::Create(uint64_t buffer_bytes) {
  std::unique_ptr<WriteBehind> behind(new WriteBehind);
  for (Mapping& buffer : behind->buffers_) {
    ASSIGN_OR_RETURN(buffer, AllocateHuge(buffer_bytes));
  }
  behind->thread_ = std::thread([self = behind.get()] { self->Run(); });
  return behind;
}

WriteBehind::~WriteBehind() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

StatusOr<ByteSpan> WriteBehind::Buffer() {
  const MutexLock lock(mutex_);
  while (pieces_.size() == kBuffers && error_.ok()) changed_.Wait(mutex_);
  RETURN_IF_ERROR(error_);
  return buffers_[next_].span();
}

void WriteBehind::Write(OutputFile* file, uint64_t offset, ConstByteSpan bytes) {
  next_ = (next_ + 1) % kBuffers;
  {
    const MutexLock lock(mutex_);
    pieces_.push_back({file, offset, bytes});
  }
  changed_.NotifyAll();
}

Status WriteBehind::Drain() {
  const MutexLock lock(mutex_);
  while (!pieces_.empty()) changed_.Wait(mutex_);
  return error_;
}

void WriteBehind::Run() {
  ::pthread_setname_np(::pthread_self(), "luwu-export");
  while (true) {
    Piece piece;
    bool failed = false;
    {
      const MutexLock lock(mutex_);
      while (pieces_.empty() && !ending_) changed_.Wait(mutex_);
      if (pieces_.empty()) return;
      piece = pieces_.front();
      failed = !error_.ok();
    }
    const Status status = failed ? OkStatus() : piece.file->Write(piece.offset, piece.bytes);
    {
      const MutexLock lock(mutex_);
      if (!status.ok()) error_ = status;
      pieces_.pop_front();
    }
    changed_.NotifyAll();
  }
}

}  // namespace luwu::interchange
