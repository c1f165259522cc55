#include "server/interchange/export_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/base/check.h"

namespace luwu::interchange {

StatusOr<std::unique_ptr<ExportRun>> ExportRun::Open(const ExportRunOptions& options,
                                                     TensorSource* source) {
  std::unique_ptr<ExportRun> run(new ExportRun(options, source));
  ASSIGN_OR_RETURN(run->model_, Checkpoint::Open(options.draft_path, "model"));
  if (options.optimizer_state) {
    ASSIGN_OR_RETURN(run->optimizer_, Checkpoint::Open(options.draft_path, "optimizer"));
    run->arrays_ += source->moments();
  }
  for (uint32_t array = 0; array < run->arrays_; ++array) {
    RETURN_IF_ERROR(run->CompareTensors(run->files_of(array), array));
  }
  run->CountBytes();
  run->batch_.values.reserve(SourceBatch::kElementsMax);
  ASSIGN_OR_RETURN(run->writes_, WriteBehind::Create(SourceBatch::kElementsMax * sizeof(float) +
                                                     OutputFile::kBlockBytes));
  return run;
}

// The files were laid out by another daemon, a moment ago, for the same job.
Status ExportRun::CompareTensors(const Checkpoint& files, uint32_t array) {
  for (const LayerSpec& layer : source_->spec().layers) {
    for (const TensorSpec& tensor : layer.tensors) {
      if (!IsStored(tensor, array)) continue;
      const StoredTensor* stored = files.Find(StoredName(tensor.name, array));
      if (stored != nullptr && stored->shape == tensor.shape && UsableDType(stored->dtype)) {
        continue;
      }
      return Error(ErrorCode::kSchemaMismatch,
                   "the files in '{}' have no place for tensor {} of job '{}': they were laid out "
                   "for another job",
                   options_.draft_path, QuotedName(tensor.name), source_->spec().name);
    }
  }
  return OkStatus();
}

void ExportRun::CountBytes() {
  for (uint32_t array = 0; array < arrays_; ++array) {
    for (const LocalShard& shard : source_->shards()) {
      const LayerSpec& layer = source_->spec().layers[shard.layer];
      const uint64_t end = shard.first_element + shard.elements;
      for (uint64_t at = shard.first_element; at < end;) {
        const std::optional<TensorPart> part = NextPart(layer, at, end);
        if (!part) break;
        at = part->first + part->count;
        const TensorSpec& tensor = layer.tensors[part->tensor];
        if (!IsStored(tensor, array)) continue;
        const StoredTensor* stored = files_of(array).Find(StoredName(tensor.name, array));
        total_bytes_ += part->count * FileDTypeBytes(stored->dtype);
      }
    }
  }
}

// Piece by piece, all arrays of a piece before the next one: a source that reads whole shards from
// a disk reads each of them once.
StatusOr<bool> ExportRun::Step() {
  const std::vector<LayerSpec>& layers = source_->spec().layers;
  while (layer_ < layers.size()) {
    const LayerSpec& layer = layers[layer_];
    batch_.Clear();
    RETURN_IF_ERROR(source_->Read({layer_, array_, skip_elements_}, &batch_));
    const uint64_t elements = batch_.values.size();
    if (elements > 0 && layer.trainable() && batch_.step != options_.step) {
      return Error(ErrorCode::kState,
                   "the export began at step {}, but layer {} {} of job '{}' is at step {} now: "
                   "training has gone on. Export while it is paused, or export a named checkpoint",
                   options_.step, layer_, QuotedName(layer.name), source_->spec().name,
                   batch_.step);
    }
    if (array_ == 0) piece_elements_ = elements;
    LUWU_CHECK(elements == piece_elements_, "a source cuts all arrays of a layer alike");
    const float* values = batch_.values.data();
    for (const SourceBatch::Run& run : batch_.runs) {
      RETURN_IF_ERROR(WriteRun(layer_, run, values));
      values += run.count;
    }
    Advance();
    if (elements > 0) return false;
  }
  if (outputs_.empty()) return true;
  RETURN_IF_ERROR(SyncOne());
  return outputs_.empty();
}

void ExportRun::Advance() {
  const bool trainable = source_->spec().layers[layer_].trainable();
  if (++array_ < (trainable ? arrays_ : 1)) return;
  array_ = 0;
  skip_elements_ += piece_elements_;
  if (!batch_.end) return;
  ++layer_;
  skip_elements_ = 0;
}

Status ExportRun::WriteRun(uint32_t layer, const SourceBatch::Run& run, const float* values) {
  const LayerSpec& spec = source_->spec().layers[layer];
  const uint64_t end = run.first_element + run.count;
  for (uint64_t at = run.first_element; at < end;) {
    const std::optional<TensorPart> part = NextPart(spec, at, end);
    if (!part) return OkStatus();
    at = part->first + part->count;
    const TensorSpec& tensor = spec.tensors[part->tensor];
    if (!IsStored(tensor, array_)) continue;
    const StoredTensor* stored = files_of(array_).Find(StoredName(tensor.name, array_));
    RETURN_IF_ERROR(WritePart(*stored, *part, values + (part->first - run.first_element)));
  }
  return OkStatus();
}

Status ExportRun::WritePart(const StoredTensor& tensor, const TensorPart& part,
                            const float* values) {
  const DType dtype = *UsableDType(tensor.dtype);
  const uint64_t element_bytes = DTypeBytes(dtype);
  const uint64_t offset = tensor.offset + part.tensor_first * element_bytes;
  ASSIGN_OR_RETURN(OutputFile* const file, OutputFor(files_of(array_).path_of(tensor.file)));
  ASSIGN_OR_RETURN(const ByteSpan buffer, writes_->Buffer());
  // As far behind a block's start as in the file.
  const uint64_t behind = offset % OutputFile::kBlockBytes;
  LUWU_CHECK(behind + part.count * element_bytes <= buffer.size(), "a batch fits");
  const ByteSpan bytes = buffer.subspan(behind, part.count * element_bytes);
  ConvertElements(DType::kFloat32, std::as_bytes(std::span(values, part.count)).data(), dtype,
                  bytes.data(), part.count);
  writes_->Write(file, offset, bytes);
  done_bytes_ += bytes.size();
  return OkStatus();
}

StatusOr<OutputFile*> ExportRun::OutputFor(const std::string& path) {
  auto found = outputs_.find(path);
  if (found == outputs_.end()) {
    // Each array goes through its files in their order: what has not been used for long is
    // complete.
    constexpr size_t kOpenMax = 8;
    while (outputs_.size() >= kOpenMax) RETURN_IF_ERROR(SyncOne());
    ASSIGN_OR_RETURN(OutputFile file, OutputFile::Open(path));
    found = outputs_.emplace(path, Output{std::move(file)}).first;
  }
  found->second.last_use = ++uses_;
  return &found->second.file;
}

Status ExportRun::SyncOne() {
  RETURN_IF_ERROR(writes_->Drain());
  const auto oldest =
      std::min_element(outputs_.begin(), outputs_.end(), [](const auto& one, const auto& other) {
        return one.second.last_use < other.second.last_use;
      });
  const Status status = oldest->second.file.Sync();
  outputs_.erase(oldest);
  return status;
}

}  // namespace luwu::interchange
