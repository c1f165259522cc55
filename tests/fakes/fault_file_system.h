// A file system under RocksDB that can be full, fail, and lose what was not synced when the power
// fails: the end of a file, sectors of that end, and the last changes of a folder. Wraps another
// one, usually RocksDB's in memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

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
  // Cuts each file to what was synced of it, or to somewhere between that and what was written, of
  // which sectors may be zero. Of what was created, renamed and deleted in a folder since it was
  // synced, the last is undone, or the last few, or all.
  void LosePower(std::mt19937_64* random);
  // Names that a loss of power has taken or brought back.
  uint64_t undone() const { return undone_; }

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
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* folder,
                                 rocksdb::IODebugContext* debug) override;

 private:
  friend class FaultWritable;
  friend class FaultReadable;
  friend class FaultDirectory;
  struct Sizes {
    uint64_t written = 0;
    uint64_t synced = 0;
  };
  // A change of a folder that was not synced: what there was under the name before.
  struct Change {
    std::string name;
    std::optional<std::string> before;  // content; nothing: no such file
    std::string renamed_from;           // empty: not renamed
  };
  rocksdb::IOStatus Check(Op op, const std::string& name);
  std::optional<std::string> ContentOf(const std::string& name);
  void Changed(Change change);
  void SyncedFolder(const std::string& name);
  void Undo(const Change& change) LUWU_REQUIRES(mutex_);
  void Tear(const std::string& name, Sizes* sizes, std::mt19937_64* random) LUWU_REQUIRES(mutex_);
  void Appended(const std::string& name, uint64_t bytes);
  void Synced(const std::string& name);

  Power* const power_;
  Mutex mutex_;
  Fault fault_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, Sizes> sizes_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<Change>> changes_ LUWU_GUARDED_BY(mutex_);  // by folder
  std::atomic<uint64_t> undone_{0};
};

}  // namespace luwu::fakes
