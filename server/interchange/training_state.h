// What an export says about the training besides tensors: at which step it was, with which
// optimizer, how often each shard was updated. It goes into the files' metadata as text, and comes
// back from there when training is to go on.
//
// Pure; any thread. Bad text is kCorrupt, another optimizer or layout kSchemaMismatch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"

namespace luwu::interchange {

struct TrainingState {
  uint64_t step = 0;
  float loss_scale = 1;
  uint32_t finite_run = 0;                     // applied steps in a row, of the loss scale's growth
  std::vector<std::vector<uint64_t>> applied;  // updates, by layer and shard
};

using Metadata = std::map<std::string, std::string>;

// Of every file of an export: files of one export only go together. `export_id` is random.
Metadata CommonMetadata(uint64_t step, const std::string& export_id);
// kCorrupt unless both are of one and the same export; the paths are for messages.
struct NamedMetadata {
  const Metadata& metadata;
  const std::string& path;
};
Status CheckOneExport(const NamedMetadata& model, const NamedMetadata& optimizer);
// Of the first file with optimizer state.
Metadata StateMetadata(const JobSpec& spec, const TrainingState& state);

// `metadata` of an opened checkpoint, for a job with `spec`; `path` is for messages.
StatusOr<TrainingState> ParseTrainingState(const JobSpec& spec, const Metadata& metadata,
                                           const std::string& path);

}  // namespace luwu::interchange
