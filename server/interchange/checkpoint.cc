#include "server/interchange/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/tensor/fingerprint.h"
#include "server/interchange/export_layout.h"
#include "server/interchange/safetensors_index.h"

namespace luwu::interchange {
namespace {

// Of all files of a checkpoint together: what the daemon keeps of them is about as large.
constexpr uint64_t kHeadersBytesMax = 4 * kHeaderBytesMax;
// Files are read in pieces of this many bytes.
constexpr uint64_t kReadBytes = 4 * kMiB;
// What every daemon reads of every file, whatever part is its own: the first block, the last one,
// and others at equal distances between them.
constexpr uint64_t kSampleBytes = 4096;
constexpr uint64_t kSamples = 16;

bool IsDirectory(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

StatusOr<Checkpoint> Checkpoint::Open(const std::string& path, const std::string& base) {
  RETURN_IF_ERROR(CheckAbsolutePath("the checkpoint", path));
  std::string found = path;
  if (IsDirectory(path)) {
    const std::string index = path + "/" + IndexNameOf(base);
    const std::string single = path + "/" + SingleNameOf(base);
    found = Exists(index) ? index : single;
    if (!Exists(found)) {
      return Error(ErrorCode::kNotFound, "folder '{}' has neither {} nor {}", path,
                   IndexNameOf(base), SingleNameOf(base));
    }
  }
  Checkpoint checkpoint;
  checkpoint.path_ = found;
  RETURN_IF_ERROR(found.ends_with(".json") ? checkpoint.AddIndexed(found)
                                           : checkpoint.AddFile(found));
  return checkpoint;
}

StatusOr<Checkpoint> Checkpoint::OpenBeside(const std::string& path, const std::string& base) {
  return Open(IsDirectory(path) ? path : FolderOf(path), base);
}

const StoredTensor* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Status Checkpoint::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(const OpenFile opened, OpenForReading(path));
  const FileIdentity& identity = opened.identity;
  if (identity.bytes < kLengthBytes) {
    return Error(ErrorCode::kCorrupt, "'{}' is no valid safetensors file: it has {} bytes", path,
                 identity.bytes);
  }
  std::array<std::byte, kLengthBytes> length_bytes = {};
  RETURN_IF_ERROR(ReadAt({path, opened.fd.get(), 0}, length_bytes));
  ASSIGN_OR_RETURN(const uint64_t length, ParseHeaderLength(length_bytes, identity.bytes, path));
  header_bytes_ += length;
  if (header_bytes_ > kHeadersBytesMax) {
    return Error(ErrorCode::kCorrupt, "the headers of the files up to '{}' have more than {} bytes",
                 path, kHeadersBytesMax);
  }
  std::string json(length, '\0');
  RETURN_IF_ERROR(
      ReadAt({path, opened.fd.get(), kLengthBytes}, std::as_writable_bytes(std::span(json))));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(json, identity.bytes, path));
  RETURN_IF_ERROR(AddMetadata(header.metadata, path));
  const uint32_t number = static_cast<uint32_t>(files_.size());
  for (TensorEntry& tensor : header.tensors) {
    const auto [at, is_new] = tensors_.try_emplace(
        std::move(tensor.name),
        StoredTensor{number, tensor.dtype, std::move(tensor.shape),
                     header.data_offset + tensor.begin, tensor.end - tensor.begin});
    if (!is_new) {
      return Error(ErrorCode::kCorrupt, "tensor {} is in '{}' and in '{}'", QuotedName(at->first),
                   path_of(at->second.file), path);
    }
  }
  files_.push_back({path, identity});
  Fingerprint fingerprint;
  fingerprint.Add(fingerprint_);
  fingerprint.Add(json);
  fingerprint.Add(identity.bytes);
  fingerprint_ = fingerprint.Value();
  return OkStatus();
}

Status Checkpoint::AddIndexed(const std::string& index_path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index_path, kIndexBytesMax));
  ASSIGN_OR_RETURN(const SafetensorsIndex index, ParseSafetensorsIndex(text, index_path));
  const std::string folder = FolderOf(index_path);
  for (const std::string& file : index.files) RETURN_IF_ERROR(AddFile(folder + "/" + file));
  RETURN_IF_ERROR(AddMetadata(index.metadata, index_path));
  for (const auto& [name, file] : index.tensors) {
    const StoredTensor* tensor = Find(name);
    if (tensor != nullptr && tensor->file == file) continue;
    return Error(ErrorCode::kCorrupt, "'{}' says that tensor {} is in '{}', but it is not",
                 index_path, QuotedName(name), index.files[file]);
  }
  return OkStatus();
}

Status Checkpoint::AddMetadata(const std::map<std::string, std::string>& metadata,
                               const std::string& path) {
  for (const auto& [key, value] : metadata) {
    const auto [at, is_new] = metadata_.try_emplace(key, value);
    if (is_new || at->second == value || !key.starts_with("luwu.")) continue;
    return Error(ErrorCode::kCorrupt,
                 "'{}' and the files before it are of different exports: they disagree about {}",
                 path, QuotedName(key));
  }
  return OkStatus();
}

Status Checkpoint::Use(uint32_t file) {
  if (in_use_ == file) return OkStatus();
  ASSIGN_OR_RETURN(OpenFile opened, OpenUnchanged(file));
  fd_ = std::move(opened.fd);
  in_use_ = file;
  return OkStatus();
}

// Opened anew, because only then does a network file system ask how the file is now.
StatusOr<OpenFile> Checkpoint::OpenUnchanged(uint32_t file) const {
  ASSIGN_OR_RETURN(OpenFile opened, OpenForReading(path_of(file)));
  if (opened.identity == files_[file].identity) return opened;
  return Error(ErrorCode::kCorrupt,
               "'{}' was changed while it was being read; import again when nobody writes to it",
               path_of(file));
}

Status Checkpoint::CheckAgain(uint32_t file) {
  ASSIGN_OR_RETURN(const OpenFile opened, OpenUnchanged(file));
  const uint64_t bytes = opened.identity.bytes;
  raw_.resize(std::min(bytes, kSampleBytes));
  const uint64_t last = bytes - raw_.size();
  uint32_t crc = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    // Not last * i / (kSamples - 1): that may overflow.
    const uint64_t offset = last / (kSamples - 1) * i + last % (kSamples - 1) * i / (kSamples - 1);
    RETURN_IF_ERROR(ReadAt({path_of(file), opened.fd.get(), offset}, raw_));
    crc = Crc32c(raw_, crc);
  }
  // What was read before this is of the file as it was opened first.
  RETURN_IF_ERROR(OpenUnchanged(file).status());
  Fingerprint fingerprint;
  fingerprint.Add(fingerprint_);
  fingerprint.Add(crc);
  fingerprint_ = fingerprint.Value();
  return OkStatus();
}

Status Checkpoint::Read(const StoredTensor& tensor, uint64_t first, std::span<float> values) {
  const std::optional<DType> dtype = UsableDType(tensor.dtype);
  LUWU_CHECK(dtype.has_value(), "only usable dtypes are read");
  const uint64_t element_bytes = DTypeBytes(*dtype);
  LUWU_CHECK(RangeFits(first, values.size(), tensor.bytes / element_bytes), "a range of it");
  RETURN_IF_ERROR(Use(tensor.file));
  uint64_t offset = tensor.offset + first * element_bytes;
  while (!values.empty()) {
    const uint64_t count = std::min<uint64_t>(values.size(), kReadBytes / element_bytes);
    const std::span<float> piece = values.first(count);
    const ByteSpan target = std::as_writable_bytes(piece);
    const FilePlace place = {path_of(tensor.file), fd_.get(), offset};
    if (*dtype == DType::kFloat32) {
      RETURN_IF_ERROR(ReadAt(place, target));
    } else {
      raw_.resize(count * element_bytes);
      RETURN_IF_ERROR(ReadAt(place, raw_));
      ConvertElements(*dtype, raw_.data(), DType::kFloat32, target.data(), count);
    }
    offset += count * element_bytes;
    values = values.subspan(count);
  }
  return OkStatus();
}

}  // namespace luwu::interchange
