// The file system as the extent engine sees it: a seam, so that tests can put a faulty device under
// the engine. Results are those of the system calls: bytes or 0, or a negative errno. Every call
// blocks and may be made by several threads at once.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "common/base/bytes.h"

namespace luwu::persist {

class BlockFile {
 public:
  virtual ~BlockFile() = default;
  // May transfer less than asked for; 0 from ReadAt means the end of the file.
  virtual int64_t ReadAt(ByteSpan data, uint64_t offset) = 0;
  virtual int64_t WriteAt(ConstByteSpan data, uint64_t offset) = 0;
  // Makes the file reach to `end`, with space for [begin, end).
  virtual int Allocate(uint64_t begin, uint64_t end) = 0;
  // Ends there; the space behind it is free.
  virtual int Truncate(uint64_t size) = 0;
  // What was written and allocated survives power loss afterwards.
  virtual int Sync() = 0;
  virtual int64_t Size() = 0;
  // For io_uring; negative when transfers must go through the calls above.
  virtual int descriptor() const = 0;
};

struct OpenedFile {
  std::unique_ptr<BlockFile> file;  // null: see error
  bool direct = false;              // past the page cache
  int error = 0;                    // a positive errno
};

class BlockFileSystem {
 public:
  virtual ~BlockFileSystem() = default;
  // Opens or creates, with O_DIRECT where the file system takes it. A symbolic link is an error.
  virtual OpenedFile Open(const std::string& path) = 0;
  virtual int Remove(const std::string& path) = 0;
  virtual int SyncDirectory(const std::string& path) = 0;
  // Bytes that a process may still take at `path`.
  virtual uint64_t FreeBytes(const std::string& path) = 0;
  // Files that may still be made at `path`: its inodes.
  virtual uint64_t FreeFiles(const std::string& /*path*/) {
    return std::numeric_limits<uint64_t>::max();
  }
  // Of the file system at `path`.
  virtual uint64_t TotalBytes(const std::string& path) = 0;
};

// "/dev/nvme0n1p2 (ext4)", for messages: what is mounted where `path` lies.
std::string DeviceOf(const std::string& path);

// The one of the operating system.
std::shared_ptr<BlockFileSystem> SystemFiles();

}  // namespace luwu::persist
