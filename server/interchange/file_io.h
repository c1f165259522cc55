// Reading and writing whole ranges of files, with errors that name the file and the reason. Used on
// work queue threads: every call may wait for the device.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::interchange {

// What an errno means to the caller: kNotFound, kPermission, kResourceExhausted (no space left),
// kUnavailable.
Status FileError(const std::string& what, const std::string& path, int error);

// Distinguishes a file from one that took its place, and from itself after a change.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;  // not even who sets the time of modification can set that
  bool operator==(const FileIdentity&) const = default;
};
struct OpenFile {
  UniqueFd fd;
  FileIdentity identity;
};
// Regular files only; symbolic links are followed.
StatusOr<OpenFile> OpenForReading(const std::string& path);
StatusOr<UniqueFd> OpenForWriting(const std::string& path);  // that exists
// A new file of `bytes` bytes with space set aside for them, where the file system can.
StatusOr<UniqueFd> CreateSized(const std::string& path, uint64_t bytes);

struct FilePlace {
  const std::string& path;  // for messages
  int fd = -1;
  uint64_t offset = 0;
};
// The whole span. kCorrupt when the file ends before.
Status ReadAt(const FilePlace& place, ByteSpan out);
Status WriteAt(const FilePlace& place, ConstByteSpan bytes);
Status SyncData(const std::string& path, int fd);
Status SyncDirectory(const std::string& path);

// The whole file, at most `bytes_max` (else kCorrupt).
StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max);
// A new file with `text`, synced.
Status WriteSmallFile(const std::string& path, const std::string& text);

// "/a/b": begins with '/', has no '..' and no control characters, and is not endless.
Status CheckAbsolutePath(const std::string& what, const std::string& path);

}  // namespace luwu::interchange
