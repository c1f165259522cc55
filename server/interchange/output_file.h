// A file that exists and gets its bytes in large pieces, past the page cache where the file system
// lets us: a page cache that grows costs more than the device does, and throws out what others have
// in it. What is not whole blocks goes through the cache, so that daemons may write to both halves
// of one block.
//
// One thread at a time; calls may wait for the device. Errors name the file.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::interchange {

class OutputFile {
 public:
  static constexpr uint64_t kBlockBytes = 4096;

  static StatusOr<OutputFile> Open(const std::string& path);

  // Goes past the cache only when the address is as far behind a block's start as the offset is.
  Status Write(uint64_t offset, ConstByteSpan bytes);
  // What was written is on the device afterwards.
  Status Sync();

 private:
  // Through the cache. Writing to the device begins when there is enough for it.
  Status WriteCached(uint64_t offset, ConstByteSpan bytes);

  std::string path_;
  UniqueFd fd_;
  UniqueFd direct_;              // not valid where O_DIRECT is refused
  uint64_t unsynced_begin_ = 0;  // of what was cached since the device was asked to begin
  uint64_t unsynced_end_ = 0;
};

}  // namespace luwu::interchange
