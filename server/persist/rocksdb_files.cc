#include "server/persist/rocksdb_files.h"

#include <cstdint>
#include <span>
#include <utility>

#include <rocksdb/table.h>

#include "common/base/bytes.h"
#include "common/base/crc32c.h"
#include "server/persist/generation.h"

// Debian's RocksDB has no CRC32C instruction built in and spends most of its time on checksums of
// blobs. The library calls this function by its exported name, so ours is taken instead.
namespace rocksdb::crc32c {
uint32_t Extend(uint32_t previous, const char* data, size_t bytes) {
  return luwu::Crc32c(std::as_bytes(std::span(data, bytes)), previous);
}
}  // namespace rocksdb::crc32c

namespace luwu::persist {
namespace {

class AlignedWritable final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using FSWritableFileOwnerWrapper::FSWritableFileOwnerWrapper;
  size_t GetRequiredBufferAlignment() const override { return kIoAlignment; }
};

class AlignedReadable final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  using FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;
  size_t GetRequiredBufferAlignment() const override { return kIoAlignment; }
};

class AlignedFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "LuwuAligned"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    std::unique_ptr<rocksdb::FSWritableFile> plain;
    rocksdb::IOStatus status = target()->NewWritableFile(name, options, &plain, debug);
    if (status.ok()) *file = std::make_unique<AlignedWritable>(std::move(plain));
    return status;
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override {
    std::unique_ptr<rocksdb::FSRandomAccessFile> plain;
    rocksdb::IOStatus status = target()->NewRandomAccessFile(name, options, &plain, debug);
    if (status.ok()) *file = std::make_unique<AlignedReadable>(std::move(plain));
    return status;
  }
};

}  // namespace

rocksdb::Options ValuesOptions(bool direct, uint64_t write_buffer_bytes) {
  rocksdb::Options options = CatalogueOptions(write_buffer_bytes);
  // Past the page cache: growing it costs more than the device does.
  options.use_direct_reads = direct;
  options.use_direct_io_for_flush_and_compaction = direct;
  options.writable_file_max_buffer_size = 4 * kMiB;
  // Values in files of their own: a value is written once, and files of a pass become garbage as a
  // whole, so that collecting them copies nothing.
  options.enable_blob_files = true;
  options.min_blob_size = 4 * kKiB;
  options.blob_file_size = 256 * kMiB;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_age_cutoff = 0.25;
  options.blob_garbage_collection_force_threshold = 1.0;
  // One memtable fills while others are flushed; more than three would start the throttle early.
  options.max_write_buffer_number = 3;
  // The throttle starts at 16 MB/s otherwise.
  options.delayed_write_rate = 8 * kGiB;
  options.level0_slowdown_writes_trigger = 40;
  options.level0_stop_writes_trigger = 60;
  options.target_file_size_base = 256 * kMiB;
  options.max_bytes_for_level_base = kGiB;
  // There is no log: values carry our own checksum, and a commit flushes.
  options.track_and_verify_wals_in_manifest = false;
  options.memtable_protection_bytes_per_key = 0;
  options.paranoid_file_checks = false;  // it would read every value again
  return options;
}

std::shared_ptr<rocksdb::FileSystem> AlignedFiles(std::shared_ptr<rocksdb::FileSystem> target) {
  return std::make_shared<AlignedFileSystem>(std::move(target));
}

rocksdb::Options CatalogueOptions(uint64_t write_buffer_bytes) {
  rocksdb::Options options;
  // Damage is an error when it is met, not something to work around.
  options.paranoid_checks = true;
  options.force_consistency_checks = true;
  options.verify_sst_unique_id_in_manifest = true;
  options.track_and_verify_wals_in_manifest = true;
  options.paranoid_file_checks = true;
  // What was never synced may come back torn in any way. Up to there it is taken; whether anything
  // that was promised lies behind it is looked at by the catalogue.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // Records in memory carry a checksum too, until they are in a file.
  options.memtable_protection_bytes_per_key = 8;
  options.write_buffer_size = write_buffer_bytes;
  options.max_background_jobs = 2;  // a catalogue is small, the cores belong to the optimizer
  // Everything is read once, at open; checksums, not compression, are what counts.
  options.compression = rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.no_block_cache = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // The daemon's own log says what matters; RocksDB's is kept for a post-mortem, bounded.
  options.max_log_file_size = 4 * kMiB;
  options.keep_log_file_num = 4;
  options.max_open_files = 256;
  options.stats_dump_period_sec = 0;
  // What matters is in the log, or has been flushed by a commit; and a disk may be full by then.
  options.avoid_flush_during_shutdown = true;
  // A full disk is ours to wait for: storage calls Resume.
  options.max_bgerror_resume_count = 0;
  return options;
}

rocksdb::Status ResumeWithRoom(rocksdb::DB* db) {
  const std::string scratch = db->GetName() + "/room";
  const std::string content(256 * kKiB, '\0');
  rocksdb::Env* const env = db->GetEnv();
  rocksdb::Status status = rocksdb::WriteStringToFile(env, content, scratch, /*should_sync=*/true);
  if (env->FileExists(scratch).ok()) (void)env->DeleteFile(scratch);
  return status.ok() ? db->Resume() : status;
}

rocksdb::Status RetryWithRoom(rocksdb::DB* db, const std::function<rocksdb::Status()>& operation) {
  rocksdb::Status status = operation();
  if (!status.IsNoSpace()) return status;
  status = ResumeWithRoom(db);
  return status.ok() ? operation() : status;
}

Status FromRocksdb(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return OkStatus();
  const ErrorCode code = status.IsNoSpace() ? ErrorCode::kResourceExhausted : ErrorCode::kCorrupt;
  return Error(code, "{}: {}", what, status.ToString());
}

}  // namespace luwu::persist
