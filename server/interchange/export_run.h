// One daemon's part of an export: reads its shards from a source, and writes them to their places
// in the files that another daemon has laid out (export_folder.h); then makes sure that the device
// has them. All of it must be of one step.
//
// One thread at a time; Step() does a bounded piece of work. Memory: four batches, plus the
// headers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/wire/shard_map.h"
#include "server/interchange/checkpoint.h"
#include "server/interchange/output_file.h"
#include "server/interchange/tensor_parts.h"
#include "server/interchange/write_behind.h"

namespace luwu::interchange {

// Runs of a layer's values with the numbers of their elements in the layer; reused.
struct SourceBatch {
  static constexpr uint64_t kElementsMax = uint64_t{1} << 20;

  struct Run {
    uint64_t first_element = 0;
    uint64_t count = 0;
  };
  std::vector<Run> runs;
  std::vector<float> values;  // of the runs, one after the other; at most kElementsMax
  uint64_t step = 0;          // that they belong to
  bool end = false;           // nothing of the layer comes after this

  void Clear() {
    runs.clear();
    values.clear();
    end = false;
  }
};

// Where an export comes from: a job as it is now, or one that was put aside.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const JobSpec& spec() const = 0;
  virtual const std::vector<LocalShard>& shards() const = 0;
  // State arrays of a trainable layer besides the master.
  virtual uint32_t moments() const = 0;
  struct Place {
    uint32_t layer = 0;
    uint32_t array = 0;          // 0: master
    uint64_t skip_elements = 0;  // of this node's part of the layer
  };
  // The next values from there on, as many for each array of the layer. Frozen layers belong to
  // every step. kDeadline: the layer is being updated, or read from a disk; ask again.
  virtual Status Read(const Place& place, SourceBatch* batch) = 0;
};

struct ExportRunOptions {
  std::string draft_path;  // DraftPath
  bool optimizer_state = false;
  uint64_t step = 0;
};

class ExportRun {
 public:
  static StatusOr<std::unique_ptr<ExportRun>> Open(const ExportRunOptions& options,
                                                   TensorSource* source);
  // Reads and writes one batch, or syncs one file. True: everything is done. kState when the source
  // is at another step. After kDeadline it may be called again.
  StatusOr<bool> Step();

  uint64_t done_bytes() const { return done_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  struct Output {
    OutputFile file;
    uint64_t last_use = 0;
  };
  ExportRun(const ExportRunOptions& options, TensorSource* source)
      : options_(options), source_(source) {}
  Status CompareTensors(const Checkpoint& files, uint32_t array);
  void CountBytes();
  void Advance();
  Status WriteRun(uint32_t layer, const SourceBatch::Run& run, const float* values);
  Status WritePart(const StoredTensor& tensor, const TensorPart& part, const float* values);
  StatusOr<OutputFile*> OutputFor(const std::string& path);
  Status SyncOne();
  const Checkpoint& files_of(uint32_t array) const { return array == 0 ? *model_ : *optimizer_; }

  const ExportRunOptions options_;
  TensorSource* const source_;
  std::optional<Checkpoint> model_;
  std::optional<Checkpoint> optimizer_;
  uint32_t arrays_ = 1;
  uint32_t array_ = 0;
  uint32_t layer_ = 0;
  uint64_t skip_elements_ = 0;
  uint64_t piece_elements_ = 0;  // of every array from there on
  SourceBatch batch_;
  std::map<std::string, Output> outputs_;
  std::unique_ptr<WriteBehind> writes_;  // into outputs_, which outlive it
  uint64_t uses_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace luwu::interchange
