// One daemon's part of an import: reads, of every tensor, the ranges that lie in this daemon's
// shards, and hands them to the job in fp32. Nothing is read before names, shapes and dtypes of all
// tensors have been compared with the job's.
//
// One thread at a time; Step() does a bounded piece of work, so that a queue thread can do other
// things in between. Memory: one piece, plus the files' headers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/interchange/checkpoint.h"
#include "server/interchange/tensor_parts.h"

namespace luwu::interchange {

// What is being loaded; implemented over a job.
class TensorTarget {
 public:
  virtual ~TensorTarget() = default;
  virtual const JobSpec& spec() const = 0;
  virtual const std::vector<LocalShard>& shards() const = 0;
  // State arrays of a trainable layer besides the master.
  virtual uint32_t moments() const = 0;
  struct Place {
    uint32_t layer = 0;
    uint32_t shard = 0;
    uint64_t offset = 0;  // elements from the start of the shard
    uint32_t array = 0;   // 0: master
  };
  virtual Status Write(const Place& place, std::span<const float> values) = 0;
};

struct ImportOptions {
  std::string path = {};
  bool allow_missing = false;     // tensors of the job that no file has become zero
  bool allow_unexpected = false;  // tensors that the job does not have are not read
  bool optimizer_state = false;
};

class ImportRun {
 public:
  // Opens the files and compares. kSchemaMismatch names tensor and file; kCorrupt: masters and
  // optimizer state are of different exports.
  static StatusOr<std::unique_ptr<ImportRun>> Open(const ImportOptions& options,
                                                   TensorTarget* target);

  // Reads and writes one piece, or looks whether one file is still what it was. True: everything is
  // done. What was written is of use only then.
  StatusOr<bool> Step();

  uint64_t done_bytes() const { return done_bytes_; }  // read from files
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t fingerprint() const;  // of the files (checkpoint.h); when everything is done
  const Checkpoint* optimizer_files() const { return optimizer_ ? &*optimizer_ : nullptr; }

 private:
  // Where the run is: it goes through array after array, shard after shard.
  struct Cursor {
    uint32_t array = 0;
    size_t shard = 0;
    uint64_t first = 0;  // in the shard
  };
  struct Piece {
    const StoredTensor* tensor = nullptr;  // null: no file has it
    TensorTarget::Place place;
    uint64_t tensor_first = 0;
    uint64_t count = 0;
  };
  explicit ImportRun(TensorTarget* target) : target_(target) {}
  Status CompareTensors(const ImportOptions& options) const;
  Status CompareArray(const ImportOptions& options, uint32_t array) const;
  const Checkpoint& files_of(uint32_t array) const { return array == 0 ? *model_ : *optimizer_; }
  // Moves the cursor behind the piece. Nothing: the end.
  std::optional<Piece> Next(Cursor* cursor) const;
  StatusOr<bool> CheckNextFile();

  TensorTarget* const target_;
  std::optional<Checkpoint> model_;
  std::optional<Checkpoint> optimizer_;
  uint32_t arrays_ = 1;
  Cursor cursor_;
  uint32_t checked_files_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  std::vector<float> values_;
};

}  // namespace luwu::interchange
