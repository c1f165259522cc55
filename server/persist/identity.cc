#include "server/persist/identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/crc32c.h"

namespace luwu::persist {
namespace {

constexpr std::string_view kFirstLine = "luwu data directory";
constexpr uint64_t kIdentityBytesMax = 4096;

Status SystemError(const char* what, const std::string& path) {
  const int error = errno;
  const ErrorCode code = error == ENOSPC || error == EDQUOT  ? ErrorCode::kResourceExhausted
                         : error == EACCES || error == EPERM ? ErrorCode::kPermission
                                                             : ErrorCode::kCorrupt;
  return Error(code, "{} {}: {}", what, path, std::strerror(error));
}

uint32_t CrcOf(std::string_view text) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Text(const Identity& identity) {
  const std::string body =
      fmt::format("{}\nformat {}\nengine {}\nnode {}\n", kFirstLine, identity.format,
                  EngineName(identity.engine), identity.node_name);
  return fmt::format("{}crc32c {:08x}\n", body, CrcOf(body));
}

// The rest of the line that begins with `key`; *left is what follows it.
std::optional<std::string_view> TakeLine(std::string_view key, std::string_view* left) {
  const size_t end = left->find('\n');
  if (end == std::string_view::npos || !left->starts_with(key)) return std::nullopt;
  const std::string_view value = left->substr(key.size(), end - key.size());
  left->remove_prefix(end + 1);
  return value;
}

StatusOr<Identity> Parse(const std::string& path, std::string_view text) {
  const auto damaged = [&](const char* what) {
    return Error(ErrorCode::kCorrupt,
                 "{}: {}; restore the file from a copy, or move the directory away and restore a "
                 "checkpoint",
                 path, what);
  };
  const size_t crc_line = text.rfind("crc32c ");
  if (crc_line == std::string_view::npos || crc_line == 0) return damaged("no checksum");
  if (text.substr(crc_line) != fmt::format("crc32c {:08x}\n", CrcOf(text.substr(0, crc_line))))
    return damaged("its checksum is wrong");
  std::string_view left = text;
  if (TakeLine(kFirstLine, &left) != std::string_view()) return damaged("not of a data directory");
  const std::optional<std::string_view> format = TakeLine("format ", &left);
  if (!format) return damaged("no format");
  uint32_t number = 0;
  std::from_chars(format->data(), format->data() + format->size(), number);
  if (number < kOldestDirectoryFormat || number > kDirectoryFormat) {
    return Error(ErrorCode::kUnsupported,
                 "{}: format {}, this version knows {} to {}: run the version that wrote it, or a "
                 "newer one",
                 path, *format, kOldestDirectoryFormat, kDirectoryFormat);
  }
  const std::optional<std::string_view> engine = TakeLine("engine ", &left);
  const std::optional<std::string_view> node = TakeLine("node ", &left);
  if (!engine || !node) return damaged("it ends too early");
  Identity identity{.node_name = std::string(*node), .format = number};
  for (const Engine known : {Engine::kExtents, Engine::kRocksdbValues}) {
    if (EngineName(known) == *engine) {
      identity.engine = known;
      return identity;
    }
  }
  return damaged("an engine that this version does not know");
}

Status WriteAll(const std::string& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return SystemError("creating", path);
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t put = ::write(fd.get(), left.data(), left.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError("writing", path);
    left.remove_prefix(static_cast<size_t>(put));
  }
  return ::fsync(fd.get()) == 0 ? OkStatus() : SystemError("syncing", path);
}

// At most 4096 bytes; an error number in *error.
std::optional<std::string> ReadSmall(const std::string& path, int* error) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, kIdentityBytesMax> text;
  const ssize_t got = fd.valid() ? ::read(fd.get(), text.data(), text.size()) : -1;
  if (got < 0) {
    *error = errno;
    return std::nullopt;
  }
  return std::string(text.data(), static_cast<size_t>(got));
}

bool IsNew(const std::string& path) {
  // The announcement of a first start that did not come to its end.
  int ignored = 0;
  const std::string announced = path + "/IDENTITY.new";
  const std::optional<std::string> text = ReadSmall(announced, &ignored);
  if (text && Parse(announced, *text).ok()) return true;
  const std::set<std::string> harmless = {"LOCK", "IDENTITY.new", "lost+found"};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (!harmless.contains(entry.path().filename().string())) return false;
  }
  return !error;
}

Status SyncFolder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && ::fsync(fd.get()) == 0 ? OkStatus() : SystemError("syncing", path);
}

}  // namespace

std::string_view EngineName(Engine engine) {
  switch (engine) {
    case Engine::kAuto:
      return "auto";
    case Engine::kExtents:
      return "extents";
    case Engine::kRocksdbValues:
      return "rocksdb_values";
  }
  return "unknown";
}

StatusOr<UniqueFd> LockDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return SystemError("creating the data directory", path);
  const std::string lock = path + "/LOCK";
  // Somebody else's folder gets no file from us; ours and new ones do.
  if (::access(lock.c_str(), F_OK) != 0) {
    const Status ours = ReadIdentity(path).status();
    if (CodeOf(ours) == ErrorCode::kPermission) return ours;
  }
  UniqueFd fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return SystemError("opening", lock);
  std::array<char, 32> owner{};
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("locking", lock);
    const ssize_t got = ::pread(fd.get(), owner.data(), owner.size() - 1, 0);
    return Error(ErrorCode::kPermission,
                 "{} is in use by another process (pid {}): stop it, or give this daemon another "
                 "storage path",
                 path, got > 0 ? owner.data() : "unknown");
  }
  // It may have a lock of its own, with which we have no business.
  const Status ours = ReadIdentity(path).status();
  if (CodeOf(ours) == ErrorCode::kPermission) return ours;
  const std::string pid = std::to_string(::getpid());
  // Only for the message above: a full disk does not matter here.
  if (::ftruncate(fd.get(), 0) == 0 && ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) return fd;
  return fd;
}

StatusOr<Identity> ReadIdentity(const std::string& path) {
  const std::string file = path + "/IDENTITY";
  int error = 0;
  const std::optional<std::string> text = ReadSmall(file, &error);
  if (text) return Parse(file, *text);
  errno = error;
  if (error != ENOENT) return SystemError("reading", file);
  if (IsNew(path)) return Error(ErrorCode::kNotFound, "{} is new", path);
  return Error(ErrorCode::kPermission,
               "{} is not empty and has no IDENTITY: it is no data directory of a daemon; give an "
               "empty one",
               path);
}

Status BeginIdentity(const std::string& path, const Identity& identity) {
  RETURN_IF_ERROR(WriteAll(path + "/IDENTITY.new", Text(identity)));
  return SyncFolder(path);
}

Status FinishIdentity(const std::string& path) {
  const std::string file = path + "/IDENTITY";
  if (::rename((path + "/IDENTITY.new").c_str(), file.c_str()) != 0)
    return SystemError("renaming to", file);
  return SyncFolder(path);
}

}  // namespace luwu::persist
