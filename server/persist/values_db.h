// The database of the engine `rocksdb_values`: payload as blobs, without a log, past the page cache
// where the file system takes that. How it is opened, and what that needs.
#pragma once

#include <memory>
#include <string>

#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace luwu::persist {

struct ValuesDb {
  std::unique_ptr<rocksdb::Env> env;  // outlives db
  std::unique_ptr<rocksdb::DB> db;

  // Of the file system.
  uint64_t AllocatedBytes() const;
};

struct ValuesDbOptions {
  std::string path;
  rocksdb::Env* env = nullptr;  // under it; null for the operating system's
  bool direct = false;
  bool create = false;  // when it is missing
  uint64_t write_buffer_bytes = 128 * kMiB;
};

StatusOr<ValuesDb> OpenValues(const ValuesDbOptions& options);

}  // namespace luwu::persist
