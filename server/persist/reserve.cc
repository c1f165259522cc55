#include "server/persist/reserve.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace luwu::persist {
namespace {

constexpr uint64_t kPieceBytes = kMiB;  // not less at once

}  // namespace

StatusOr<std::unique_ptr<Reserve>> Reserve::Open(const std::string& folder,
                                                 std::shared_ptr<BlockFileSystem> files,
                                                 uint64_t wanted) {
  const uint64_t target =
      std::min(wanted, files->TotalBytes(folder) / 4 / kPieceBytes * kPieceBytes);
  const std::string path = folder + "/RESERVE";
  OpenedFile opened = files->Open(path);
  // A full file system may have no room for another name: there is no reserve then, for now.
  if (opened.error != 0 && opened.error != ENOSPC && opened.error != EDQUOT) {
    return Error(ErrorCode::kCorrupt, "opening {}: {}", path, std::strerror(opened.error));
  }
  std::unique_ptr<Reserve> reserve(new Reserve(path, std::move(files), target));
  {
    const MutexLock lock(reserve->mutex_);
    reserve->file_ = std::move(opened.file);
    const int64_t size = reserve->file_ == nullptr ? 0 : reserve->file_->Size();
    if (size < 0)
      return Error(ErrorCode::kCorrupt, "looking at {}: {}", path, std::strerror(-size));
    reserve->bytes_ = std::min(static_cast<uint64_t>(size), target);
  }
  const Status restored = reserve->Restore();
  if (!restored.ok() && CodeOf(restored) != ErrorCode::kResourceExhausted) return restored;
  return reserve;
}

bool Reserve::Release(uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (bytes_ == 0 || file_ == nullptr) return false;
  const uint64_t piece =
      std::min(bytes_.load(), AlignUp(std::max(bytes, kPieceBytes), kPieceBytes));
  if (file_->Truncate(bytes_ - piece) != 0) return false;
  bytes_ -= piece;
  return true;
}

Status Reserve::Restore() {
  const MutexLock lock(mutex_);
  if (bytes_ == target_) return OkStatus();
  if (file_ == nullptr) file_ = files_->Open(path_).file;
  const int error = file_ == nullptr ? -ENOSPC : file_->Allocate(bytes_, target_);
  if (error == 0) {
    bytes_ = target_;
    return OkStatus();
  }
  // Some file systems keep a part.
  if (file_ != nullptr) (void)file_->Truncate(bytes_);
  if (error != -ENOSPC && error != -EDQUOT)
    return Error(ErrorCode::kCorrupt, "allocating {}: {}", path_, std::strerror(-error));
  return Error(ErrorCode::kResourceExhausted,
               "{} of {} that are kept back for a full disk are not there (in {})",
               HumanBytes(target_ - bytes_), HumanBytes(target_), path_);
}

}  // namespace luwu::persist
