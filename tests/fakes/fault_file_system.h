// A file system under RocksDB that can be full, fail, and lose what was not synced when the power
// fails. Wraps another one, usually RocksDB's in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

#include <rocksdb/file_system.h>

#include "common/base/sync.h"
#include "tests/fakes/power.h"

namespace luwu::fakes {

class FaultFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  enum class Op { kCreate, kAppend, kSync, kRead, kRename, kDelete };
  // Called before each operation on a file; a status that is not OK is what it returns.
  using Fault = std::function<rocksdb::IOStatus(Op op, const std::string& name)>;

  FaultFileSystem(std::shared_ptr<rocksdb::FileSystem> target, Power* power)
      : FileSystemWrapper(std::move(target)), power_(power) {}
  const char* Name() const override { return "LuwuFault"; }

  void set_fault(Fault fault);
  // Cuts each file to what was synced of it, or to somewhere between that and what was written.
  void LosePower(std::mt19937_64* random);

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  friend class FaultWritable;
  friend class FaultReadable;
  struct Sizes {
    uint64_t written = 0;
    uint64_t synced = 0;
  };
  rocksdb::IOStatus Check(Op op, const std::string& name);
  void Appended(const std::string& name, uint64_t bytes);
  void Synced(const std::string& name);

  Power* const power_;
  Mutex mutex_;
  Fault fault_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, Sizes> sizes_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::fakes
