// How this module opens RocksDB: every option in one place with its reason, the status mapping, and
// a file system under RocksDB that aligns direct I/O to 4096 bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>

#include "common/base/status.h"

namespace luwu::persist {

// Of metadata: small records, one synced batch per commit.
rocksdb::Options CatalogueOptions(uint64_t write_buffer_bytes);

// Of payload: large values that are overwritten again and again.
rocksdb::Options ValuesOptions(bool direct, uint64_t write_buffer_bytes);

// Debian's RocksDB aligns direct I/O to 512 bytes, with which appends reach a tenth of the device's
// speed where blocks are 4096 bytes.
std::shared_ptr<rocksdb::FileSystem> AlignedFiles(std::shared_ptr<rocksdb::FileSystem> target);

// After a full disk RocksDB takes nothing until it is told to go on; told so while the disk is
// still full, it may fail for good. So a scratch file is written first, and its failure returned.
rocksdb::Status ResumeWithRoom(rocksdb::DB* db);
// Once more after that, when the disk was full.
rocksdb::Status RetryWithRoom(rocksdb::DB* db, const std::function<rocksdb::Status()>& operation);

// kResourceExhausted for a full disk, else kCorrupt; `what` says which operation on which path.
Status FromRocksdb(const rocksdb::Status& status, const std::string& what);

}  // namespace luwu::persist
