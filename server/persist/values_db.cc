#include "server/persist/values_db.h"

#include <malloc.h>

#include <utility>

#include "server/persist/rocksdb_files.h"

namespace luwu::persist {

uint64_t ValuesDb::AllocatedBytes() const {
  uint64_t bytes = 0;
  for (const char* name : {"rocksdb.total-sst-files-size", "rocksdb.total-blob-file-size"}) {
    uint64_t value = 0;
    if (db->GetIntProperty(name, &value)) bytes += value;
  }
  return bytes;
}

namespace {

// RocksDB allocates and frees buffers of the size of a value for each write and read. By default
// malloc gives such memory back to the kernel and gets it anew, and the first touch of a page costs
// more than the device takes for its bytes. So the process keeps what it once had: bounded by what
// StorageMemory reserves. Threads share one heap, because only the first can keep that much.
void KeepFreedMemory() {
  constexpr int kKeptBytes = 1 << 30;
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes; a value is 12 MiB
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  ::mallopt(M_TOP_PAD, 64 << 20);
  ::mallopt(M_ARENA_MAX, 1);
}

}  // namespace

StatusOr<ValuesDb> OpenValues(const ValuesDbOptions& options) {
  KeepFreedMemory();
  rocksdb::Env* const base = options.env != nullptr ? options.env : rocksdb::Env::Default();
  ValuesDb values;
  values.env = rocksdb::NewCompositeEnv(AlignedFiles(base->GetFileSystem()));
  rocksdb::Options rocks = ValuesOptions(options.direct, options.write_buffer_bytes);
  rocks.env = values.env.get();
  rocks.create_if_missing = options.create;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(rocks, options.path, &opened);
  values.db.reset(opened);
  if (!status.ok()) {
    return FromRocksdb(status, fmt::format("opening the values in {}: the data directory cannot be "
                                           "used; if the disk is sound, move the directory away "
                                           "and restore a checkpoint or an export",
                                           options.path));
  }
  return values;
}

}  // namespace luwu::persist
