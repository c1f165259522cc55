#include "server/interchange/export_draft.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <random>

#include "common/base/check.h"
#include "server/interchange/file_io.h"

namespace luwu::interchange {
namespace {

constexpr std::string_view kDraftPrefix = ".luwu-export-";
constexpr size_t kDraftDigits = 16;
constexpr mode_t kLockMode = 0666;  // less the daemon's umask

std::string LockPathOf(const std::string& draft_path) { return draft_path + "/lock"; }

// False: another has it. A file system that knows no locks gives them to all.
bool TryLock(int fd, int kind) {
  int error = 0;
  do {
    error = ::flock(fd, kind | LOCK_NB) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error != EWOULDBLOCK;
}

}  // namespace

std::string NewDraftName() {
  std::random_device random;
  const uint64_t number = (uint64_t{random()} << 32) | random();
  return fmt::format("{}{:016x}", kDraftPrefix, number);
}

bool IsDraftName(std::string_view name) {
  return name.size() == kDraftPrefix.size() + kDraftDigits && name.starts_with(kDraftPrefix) &&
         name.find_first_not_of("0123456789abcdef", kDraftPrefix.size()) == std::string_view::npos;
}

std::string ExportIdOf(std::string_view draft) {
  LUWU_CHECK(IsDraftName(draft), "a draft's name");
  return std::string(draft.substr(kDraftPrefix.size()));
}

uint64_t ExportNumberOf(std::string_view draft) {
  const std::string digits = ExportIdOf(draft);
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  LUWU_CHECK(error == std::errc(), "sixteen digits");
  return number;
}

StatusOr<std::string> DraftPath(const std::string& folder, const std::string& draft) {
  RETURN_IF_ERROR(CheckAbsolutePath("the folder of an export", folder));
  if (IsDraftName(draft)) return folder + "/" + draft;
  return Error(ErrorCode::kInvalidArgument, "no export is called so; begin one first");
}

StatusOr<UniqueFd> MakeDraft(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return FileError("make the folder", path, errno);
  const std::string lock_path = LockPathOf(path);
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kLockMode));
  // Gone already: another export took it for left.
  if (!lock.valid() && errno != ENOENT) return FileError("open", lock_path, errno);
  if (lock.valid() && TryLock(lock.get(), LOCK_EX)) return lock;
  return Error(ErrorCode::kAlreadyExists,
               "another export has begun beside '{}' in this moment; export again", path);
}

StatusOr<bool> IsDraftInUse(const std::string& path) {
  const std::string lock_path = LockPathOf(path);
  const UniqueFd lock(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // Shared: it needs no right to write, and others may ask at the same time.
  if (lock.valid()) return !TryLock(lock.get(), LOCK_SH);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return FileError("open", lock_path, errno);
}

Status RemoveEmptyDraft(const std::string& path) {
  const std::string lock_path = LockPathOf(path);
  if (::unlink(lock_path.c_str()) != 0 && errno != ENOENT) {
    return FileError("remove", lock_path, errno);
  }
  if (::rmdir(path.c_str()) != 0) return FileError("remove the folder", path, errno);
  return OkStatus();
}

}  // namespace luwu::interchange
