#include "server/persist/extent_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/crc32c.h"

namespace luwu::persist {
namespace {

constexpr uint64_t kGrowBytes = 64 * kMiB;
constexpr uint64_t kScrubBytes = kMiB;

uint64_t Padded(uint64_t bytes) { return AlignUp(bytes, kIoAlignment); }

Status FileError(const std::string& what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kCorrupt, "{} {}: {}", what, path,
               std::strerror(error));
}

}  // namespace

StatusOr<std::unique_ptr<ExtentStore>> ExtentStore::Open(const std::string& path,
                                                         std::shared_ptr<BlockFileSystem> files,
                                                         DiskQueue* queue) {
  std::unique_ptr<ExtentStore> store(new ExtentStore(path, std::move(files), queue));
  OpenedFile opened = store->files_->Open(path);
  if (opened.error != 0) return FileError("opening", path, opened.error);
  store->file_ = std::move(opened.file);
  // The name of a new file must be as durable as what it will hold.
  const std::string folder = path.substr(0, path.rfind('/'));
  if (const int error = store->files_->SyncDirectory(folder); error < 0)
    return FileError("syncing", folder, -error);
  const int64_t size = store->file_->Size();
  if (size < 0) return FileError("looking at", path, static_cast<int>(-size));
  const MutexLock lock(store->mutex_);
  store->allocator_.Extend(static_cast<uint64_t>(size) & ~(kIoAlignment - 1));
  return store;
}

Status ExtentStore::MarkUsed(uint64_t place, uint64_t bytes) {
  const std::optional<uint64_t> end = CheckedAdd(place, Padded(bytes));
  const MutexLock lock(mutex_);
  if (!end || place % kIoAlignment != 0 || *end > uint64_t{1} << 62)
    return Error(ErrorCode::kCorrupt, "{} at offset {}: no place of an extent", path_, place);
  // A file that was cut short is found by reading; the place stays taken all the same.
  if (*end > allocator_.size()) allocator_.Extend(*end);
  if (!allocator_.Mark(place, Padded(bytes))) {
    return Error(ErrorCode::kCorrupt, "{} at offset {}: two generations in one place", path_,
                 place);
  }
  return OkStatus();
}

bool ExtentStore::HasRoom(uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return allocator_.Fits(Padded(bytes));
}

bool ExtentStore::Take(uint64_t bytes, uint64_t* place) {
  const MutexLock lock(mutex_);
  const std::optional<uint64_t> taken = allocator_.Take(Padded(bytes));
  if (taken) *place = *taken;
  return taken.has_value();
}

Status ExtentStore::Grow(uint64_t bytes) {
  const MutexLock growing(grow_mutex_);
  uint64_t begin = 0;
  uint64_t missing = 0;
  {
    const MutexLock lock(mutex_);
    if (allocator_.Fits(Padded(bytes))) return OkStatus();  // what was given back counts
    begin = allocator_.size();
    missing = allocator_.Missing(Padded(bytes));
  }
  if (missing == 0) return OkStatus();
  uint64_t end = begin + std::max(missing, kGrowBytes);
  int error = file_->Allocate(begin, end);
  if (error < 0 && missing < kGrowBytes) {
    end = begin + missing;
    error = file_->Allocate(begin, end);
  }
  if (error < 0) {
    return FileError(fmt::format("allocating {} in", HumanBytes(missing)), path_, -error);
  }
  const MutexLock lock(mutex_);
  allocator_.Extend(end);
  return OkStatus();
}

void ExtentStore::Give(uint64_t place, uint64_t bytes) {
  const MutexLock lock(mutex_);
  allocator_.Give(place, Padded(bytes));
}

void ExtentStore::Write(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) {
  const uint64_t padded = Padded(bytes);
  std::memset(data + bytes, 0, padded - bytes);
  queue_->Submit({Transfer::Kind::kWrite, file_.get(), data, padded, place, std::move(done)});
}

void ExtentStore::Read(uint64_t place, std::byte* data, uint64_t bytes, IoDone done) {
  queue_->Submit({Transfer::Kind::kRead, file_.get(), data, Padded(bytes), place, std::move(done)});
}

StatusOr<uint32_t> ExtentStore::Checksum(uint64_t place, uint64_t bytes, const Pace& pace) {
  const MutexLock lock(scrub_mutex_);
  if (scrub_buffer_.bytes() == 0) {
    ASSIGN_OR_RETURN(scrub_buffer_, AllocateHuge(kScrubBytes));
  }
  uint32_t crc = 0;
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t part = std::min(kScrubBytes, Padded(bytes - at));
    if (!pace(part)) return Error(ErrorCode::kCancelled, "the storage shuts down");
    const int64_t got = file_->ReadAt({scrub_buffer_.data(), part}, place + at);
    if (got == -EINTR || got == -EAGAIN) continue;
    if (got < static_cast<int64_t>(std::min(part, bytes - at))) {
      return FileError("reading", Describe(place + at), got < 0 ? static_cast<int>(-got) : ENODATA);
    }
    const uint64_t payload = std::min(part, bytes - at);
    crc = Crc32c({scrub_buffer_.data(), payload}, crc);
    at += part;
  }
  return crc;
}

Status ExtentStore::Sync(SyncLevel level) {
  if (level == SyncLevel::kLogged) return OkStatus();  // the kernel has it
  const int error = file_->Sync();
  if (error == 0) return OkStatus();
  return Error(ErrorCode::kCorrupt, "syncing {}: {}", path_, std::strerror(-error));
}

Status ExtentStore::Destroy() {
  const int error = files_->Remove(path_);
  return error == 0 ? OkStatus() : FileError("removing", path_, -error);
}

uint64_t ExtentStore::allocated_bytes() const {
  const MutexLock lock(mutex_);
  return allocator_.size();
}

std::string ExtentStore::Describe(uint64_t place) const {
  return fmt::format("{} at offset {}", path_, place);
}

}  // namespace luwu::persist
