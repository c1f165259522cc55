#include "server/persist/values_db.h"

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

StatusOr<ValuesDb> OpenValues(const ValuesDbOptions& options) {
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
