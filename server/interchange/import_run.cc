#include "server/interchange/import_run.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/failpoint.h"
#include "common/tensor/fingerprint.h"
#include "server/interchange/training_state.h"

namespace luwu::interchange {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 20;  // 4 MiB in fp32
constexpr uint64_t kBlockElements = 256;

Status CompareTensor(const TensorSpec& wanted, const StoredTensor& stored, const std::string& name,
                     const std::string& path) {
  if (!UsableDType(stored.dtype)) {
    return Error(ErrorCode::kSchemaMismatch,
                 "tensor {} in '{}' has dtype {}; F32, BF16 and F16 can be imported",
                 QuotedName(name), path, FileDTypeName(stored.dtype));
  }
  if (stored.shape == wanted.shape) return OkStatus();
  return Error(ErrorCode::kSchemaMismatch, "tensor {} has shape {} in '{}', but {} in the job",
               QuotedName(name), ShapeText(stored.shape), path, ShapeText(wanted.shape));
}

}  // namespace

StatusOr<std::unique_ptr<ImportRun>> ImportRun::Open(const ImportOptions& options,
                                                     TensorTarget* target) {
  std::unique_ptr<ImportRun> run(new ImportRun(target));
  ASSIGN_OR_RETURN(run->model_, Checkpoint::Open(options.path, "model"));
  if (options.optimizer_state) {
    StatusOr<Checkpoint> state = Checkpoint::OpenBeside(options.path, "optimizer");
    if (!state.ok()) return Annotate(state.status(), "optimizer state");
    run->optimizer_ = *std::move(state);
    run->arrays_ += target->moments();
    RETURN_IF_ERROR(CheckOneExport({run->model_->metadata(), run->model_->path()},
                                   {run->optimizer_->metadata(), run->optimizer_->path()}));
  }
  RETURN_IF_ERROR(run->CompareTensors(options));
  Cursor cursor;
  while (const std::optional<Piece> piece = run->Next(&cursor)) {
    if (piece->tensor != nullptr) {
      run->total_bytes_ += piece->count * FileDTypeBytes(piece->tensor->dtype);
    }
  }
  return run;
}

uint64_t ImportRun::fingerprint() const {
  Fingerprint fingerprint;
  fingerprint.Add(model_->fingerprint());
  fingerprint.Add(optimizer_ ? optimizer_->fingerprint() : 0);
  return fingerprint.Value();
}

Status ImportRun::CompareTensors(const ImportOptions& options) const {
  for (uint32_t array = 0; array < arrays_; ++array) RETURN_IF_ERROR(CompareArray(options, array));
  if (options.allow_unexpected) return OkStatus();
  std::set<std::string> known;
  for (const LayerSpec& layer : target_->spec().layers) {
    for (const TensorSpec& tensor : layer.tensors) {
      for (uint32_t array = 0; array < arrays_; ++array)
        known.insert(StoredName(tensor.name, array));
    }
  }
  for (const Checkpoint* files : {&*model_, optimizer_files()}) {
    if (files == nullptr) continue;
    for (const auto& [name, stored] : files->tensors()) {
      if (known.contains(name)) continue;
      return Error(ErrorCode::kSchemaMismatch,
                   "'{}' has tensor {}, which job '{}' does not have; allow unexpected tensors to "
                   "leave it out",
                   files->path_of(stored.file), QuotedName(name), target_->spec().name);
    }
  }
  return OkStatus();
}

Status ImportRun::CompareArray(const ImportOptions& options, uint32_t array) const {
  const Checkpoint& files = files_of(array);
  std::string first_missing;
  uint64_t missing = 0;
  uint64_t found = 0;
  for (const LayerSpec& layer : target_->spec().layers) {
    for (const TensorSpec& tensor : layer.tensors) {
      if (!IsStored(tensor, array)) continue;
      const std::string name = StoredName(tensor.name, array);
      const StoredTensor* stored = files.Find(name);
      if (stored == nullptr) {
        if (missing++ == 0)
          first_missing = QuotedName(name) + " of layer " + QuotedName(layer.name);
        continue;
      }
      ++found;
      RETURN_IF_ERROR(CompareTensor(tensor, *stored, name, files.path_of(stored->file)));
    }
  }
  // State of a part of the tensors is no state that training could go on with.
  if (missing == 0 || (options.allow_missing && array == 0 && found > 0)) return OkStatus();
  if (found == 0) {
    return Error(ErrorCode::kSchemaMismatch,
                 "'{}' has none of the tensors of job '{}', such as {}: is it the same model?",
                 options.path, target_->spec().name, first_missing);
  }
  return Error(ErrorCode::kSchemaMismatch, "'{}' lacks {} of the tensors of job '{}', such as {}{}",
               options.path, missing, target_->spec().name, first_missing,
               array == 0 ? "; allow missing tensors to start these from zeros" : "");
}

std::optional<ImportRun::Piece> ImportRun::Next(Cursor* cursor) const {
  const std::vector<LocalShard>& shards = target_->shards();
  while (cursor->array < arrays_) {
    if (cursor->shard == shards.size()) {
      *cursor = {cursor->array + 1, 0, 0};
      continue;
    }
    const LocalShard& shard = shards[cursor->shard];
    const LayerSpec& layer = target_->spec().layers[shard.layer];
    const std::optional<TensorPart> part =
        NextPart(layer, shard.first_element + cursor->first, shard.first_element + shard.elements);
    if (!part) {
      *cursor = {cursor->array, cursor->shard + 1, 0};
      continue;
    }
    const TensorSpec& tensor = layer.tensors[part->tensor];
    const uint64_t offset = part->first - shard.first_element;
    if (!IsStored(tensor, cursor->array)) {
      cursor->first = offset + part->count;
      continue;
    }
    const StoredTensor* stored =
        files_of(cursor->array).Find(StoredName(tensor.name, cursor->array));
    // Quantised state is written in whole blocks: pieces end where blocks of the shard do.
    const uint64_t whole = (offset + kPieceElements) / kBlockElements * kBlockElements - offset;
    const uint64_t count = std::min(part->count, whole);
    cursor->first = offset + count;
    return Piece{
        stored, {shard.layer, shard.shard, offset, cursor->array}, part->tensor_first, count};
  }
  return std::nullopt;
}

StatusOr<bool> ImportRun::Step() {
  const std::optional<Piece> piece = Next(&cursor_);
  if (!piece) return CheckNextFile();
  values_.resize(piece->count);
  if (piece->tensor == nullptr) {
    // Zeros are written: the job may hold what an earlier import has left.
    std::fill(values_.begin(), values_.end(), 0.0f);
    RETURN_IF_ERROR(target_->Write(piece->place, values_));
    return false;
  }
  if (const int error = LUWU_FAILPOINT("interchange.read"); error != 0) {
    return FileError("read", files_of(piece->place.array).path(), error);
  }
  Checkpoint& files = piece->place.array == 0 ? *model_ : *optimizer_;
  RETURN_IF_ERROR(files.Read(*piece->tensor, piece->tensor_first, values_));
  RETURN_IF_ERROR(target_->Write(piece->place, values_));
  done_bytes_ += piece->count * FileDTypeBytes(piece->tensor->dtype);
  return false;
}

StatusOr<bool> ImportRun::CheckNextFile() {
  const size_t model_files = model_->files();
  const size_t files = model_files + (optimizer_ ? optimizer_->files() : 0);
  if (checked_files_ == files) return true;
  const uint32_t file = checked_files_++;
  RETURN_IF_ERROR(file < model_files
                      ? model_->CheckAgain(file)
                      : optimizer_->CheckAgain(file - static_cast<uint32_t>(model_files)));
  return checked_files_ == files;
}

}  // namespace luwu::interchange
