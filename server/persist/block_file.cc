#include "server/persist/block_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::persist {
namespace {

class SystemFile final : public BlockFile {
 public:
  explicit SystemFile(UniqueFd fd) : fd_(std::move(fd)) {}

  int64_t ReadAt(ByteSpan data, uint64_t offset) override {
    const ssize_t got = ::pread(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  }
  int64_t WriteAt(ConstByteSpan data, uint64_t offset) override {
    const ssize_t put = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    return put < 0 ? -errno : put;
  }
  int Allocate(uint64_t begin, uint64_t end) override {
    if (::fallocate(fd_.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin)) == 0)
      return 0;
    if (errno != EOPNOTSUPP) return -errno;
    // Space comes with the writes then, which wait when there is none.
    return ::ftruncate(fd_.get(), static_cast<off_t>(end)) == 0 ? 0 : -errno;
  }
  int Truncate(uint64_t size) override {
    return ::ftruncate(fd_.get(), static_cast<off_t>(size)) == 0 ? 0 : -errno;
  }
  int Sync() override { return ::fdatasync(fd_.get()) == 0 ? 0 : -errno; }
  int64_t Size() override {
    struct stat info {};
    return ::fstat(fd_.get(), &info) == 0 ? info.st_size : -errno;
  }
  int descriptor() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class SystemFileSystem final : public BlockFileSystem {
 public:
  OpenedFile Open(const std::string& path) override {
    OpenedFile opened;
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    UniqueFd fd(::open(path.c_str(), flags | O_DIRECT, 0600));
    opened.direct = fd.valid();
    if (!fd.valid()) {
      fd = UniqueFd(::open(path.c_str(), flags, 0600));
      if (!fd.valid()) {
        opened.error = errno;
        return opened;
      }
    }
    opened.file = std::make_unique<SystemFile>(std::move(fd));
    return opened;
  }
  int Remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : -errno;
  }
  int SyncDirectory(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd.valid() && ::fsync(fd.get()) == 0 ? 0 : -errno;
  }
  uint64_t FreeBytes(const std::string& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) return 0;
    return uint64_t{info.f_bavail} * info.f_frsize;
  }
  uint64_t FreeFiles(const std::string& path) override {
    struct statvfs info {};
    const bool counted = ::statvfs(path.c_str(), &info) == 0 && info.f_files > 0;
    return counted ? uint64_t{info.f_favail} : BlockFileSystem::FreeFiles(path);
  }
  uint64_t TotalBytes(const std::string& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) return 0;
    return uint64_t{info.f_blocks} * info.f_frsize;
  }
};

}  // namespace

std::string DeviceOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "unknown";
  const std::string number = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev));
  // 36 35 98:0 /root /mount/point options [fields] - type source options
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string skipped, mounted;
    if (!(fields >> skipped >> skipped >> mounted) || mounted != number) continue;
    while (fields >> skipped && skipped != "-") {
    }
    std::string type, source;
    if (fields >> type >> source) return fmt::format("{} ({})", source, type);
  }
  return number;
}

std::shared_ptr<BlockFileSystem> SystemFiles() { return std::make_shared<SystemFileSystem>(); }

}  // namespace luwu::persist
