#include "server/interchange/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/failpoint.h"

namespace luwu::interchange {
namespace {

constexpr size_t kPathMax = 4096;
constexpr mode_t kFileMode = 0666;  // less the daemon's umask

StatusOr<UniqueFd> Open(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, kFileMode));
  if (fd.valid()) return fd;
  return FileError("open", path, errno);
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

}  // namespace

Status FileError(const std::string& what, const std::string& path, int error) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (error == ENOENT || error == ENOTDIR) code = ErrorCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS) code = ErrorCode::kPermission;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = ErrorCode::kResourceExhausted;
  if (error == EEXIST) code = ErrorCode::kAlreadyExists;
  return Error(code, "cannot {} '{}': {}", what, path, std::strerror(error));
}

StatusOr<OpenFile> OpenForReading(const std::string& path) {
  OpenFile file;
  // Without O_NONBLOCK the opening of a pipe waits for whoever writes it.
  ASSIGN_OR_RETURN(file.fd, Open(path, O_RDONLY | O_NONBLOCK));
  struct stat info = {};
  if (::fstat(file.fd.get(), &info) != 0) return FileError("look at", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error(ErrorCode::kInvalidArgument, "'{}' is no regular file", path);
  }
  file.identity = {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
                   Nanoseconds(info.st_mtim), Nanoseconds(info.st_ctim)};
  return file;
}

StatusOr<UniqueFd> OpenForWriting(const std::string& path) {
  return Open(path, O_WRONLY | O_NOFOLLOW);
}

StatusOr<UniqueFd> CreateSized(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDWR | O_CREAT | O_EXCL));
  if (bytes > static_cast<uint64_t>(INT64_MAX)) return FileError("size", path, EFBIG);
  const off_t length = static_cast<off_t>(bytes);
  int error = LUWU_FAILPOINT("interchange.allocate");
  if (error == 0) {
    do {
      error = length == 0 || ::fallocate(fd.get(), 0, 0, length) == 0 ? 0 : errno;
    } while (error == EINTR);
  }
  if (error == EOPNOTSUPP) error = ::ftruncate(fd.get(), length) == 0 ? 0 : errno;
  if (error != 0) return FileError("set space aside for", path, error);
  return fd;
}

Status ReadAt(const FilePlace& place, ByteSpan out) {
  uint64_t offset = place.offset;
  while (!out.empty()) {
    const ssize_t got = ::pread(place.fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", place.path, errno);
    if (got == 0) {
      return Error(ErrorCode::kCorrupt, "'{}' ends at byte {}: it was cut since it was opened",
                   place.path, offset);
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return OkStatus();
}

Status WriteAt(const FilePlace& place, ConstByteSpan bytes) {
  uint64_t offset = place.offset;
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(place.fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FileError("write", place.path, errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return OkStatus();
}

Status SyncData(const std::string& path, int fd) {
  if (::fdatasync(fd) == 0) return OkStatus();
  return FileError("write to the device", path, errno);
}

Status SyncDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY));
  // Some file systems have nothing to write for a folder and say so.
  if (::fsync(fd.get()) == 0 || errno == EINVAL) return OkStatus();
  return FileError("write to the device", path, errno);
}

StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenForReading(path));
  if (file.identity.bytes > bytes_max) {
    return Error(ErrorCode::kCorrupt, "'{}' has {} bytes; at most {} are allowed", path,
                 file.identity.bytes, bytes_max);
  }
  std::string text(file.identity.bytes, '\0');
  RETURN_IF_ERROR(ReadAt({path, file.fd.get(), 0}, std::as_writable_bytes(std::span(text))));
  return text;
}

Status WriteSmallFile(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_WRONLY | O_CREAT | O_EXCL));
  RETURN_IF_ERROR(WriteAt({path, fd.get(), 0}, std::as_bytes(std::span(text))));
  return SyncData(path, fd.get());
}

Status CheckAbsolutePath(const std::string& what, const std::string& path) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (path.empty() || path.front() != '/') {
    return Error(ErrorCode::kInvalidArgument,
                 "{} must be an absolute path that all daemons see; got '{}'", what, path);
  }
  if (path.size() >= kPathMax || std::any_of(path.begin(), path.end(), control)) {
    return Error(ErrorCode::kInvalidArgument, "{} is too long or has control characters", what);
  }
  if ((path + "/").find("/../") != std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, "{} '{}' must not contain '..'", what, path);
  }
  return OkStatus();
}

}  // namespace luwu::interchange
