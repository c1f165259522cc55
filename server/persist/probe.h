// What the file system under a data directory can do, tried out with one block in a scratch file:
// written, synced, read back, compared. Called when the storage is opened.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/persist/block_file.h"
#include "server/persist/disk_queue.h"

namespace luwu::persist {

struct Probe {
  bool direct = false;               // takes O_DIRECT
  std::unique_ptr<DiskQueue> queue;  // io_uring where it works, else threads
  bool uring = false;
};

// kCorrupt when what is read is not what was written, or a call fails; kResourceExhausted.
StatusOr<Probe> ProbeDirectory(const std::string& folder, BlockFileSystem* files);

}  // namespace luwu::persist
