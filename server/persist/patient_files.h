// Files under RocksDB that wait for space. RocksDB does not survive a log that could not be
// written: with the assertions that Debian builds in, the next sync of it ends the process. So
// space is set aside before each write, the waiting is done there, and RocksDB never sees a full
// disk, except when the storage stops. What is not payload takes from the node's reserve before it
// waits.
#pragma once

#include <memory>

#include <rocksdb/file_system.h>

#include "server/persist/node_state.h"

namespace luwu::persist {

// `state` outlives the files. Where space cannot be set aside, writes are as they were.
std::shared_ptr<rocksdb::FileSystem> PatientFiles(std::shared_ptr<rocksdb::FileSystem> target,
                                                  NodeState* state);

}  // namespace luwu::persist
