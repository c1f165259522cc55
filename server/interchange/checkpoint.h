// A safetensors checkpoint that lies in one file or, with an index, in several: every header is
// read and checked when it is opened, and ranges of tensors are read when they are asked for.
//
// One thread at a time. Keeps one file open. Errors name the file: kNotFound, kPermission, kCorrupt
// (bad bytes, or a file that changed since it was opened).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/interchange/file_io.h"
#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {

struct StoredTensor {
  uint32_t file = 0;
  FileDType dtype = FileDType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
};

class Checkpoint {
 public:
  // `path`: a file, an index (*.json), or a folder with BASE.safetensors.index.json or
  // BASE.safetensors.
  static StatusOr<Checkpoint> Open(const std::string& path, const std::string& base);
  // In the folder of `path` (or `path` itself when it is one).
  static StatusOr<Checkpoint> OpenBeside(const std::string& path, const std::string& base);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(const std::string& name) const;
  // Of all files. A key of ours ("luwu.") that they disagree about is refused when they are opened;
  // of others the first file's value counts.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Of the index, or of the only file.
  const std::string& path() const { return path_; }
  const std::string& path_of(uint32_t file) const { return files_[file].path; }
  size_t files() const { return files_.size(); }
  // Of headers and sizes; after CheckAgain of samples, too. For daemons that should see the same
  // files: other ones have another fingerprint, but for such as differ between the samples only.
  uint64_t fingerprint() const { return fingerprint_; }

  // Elements [first, first + values.size()) in fp32; the dtype is usable (CHECKed).
  Status Read(const StoredTensor& tensor, uint64_t first, std::span<float> values);
  // After all has been read, for each file in order: kCorrupt when it has changed, or another one
  // has its name, since it was opened. Adds samples of its bytes to the fingerprint.
  Status CheckAgain(uint32_t file);

 private:
  struct File {
    std::string path;
    FileIdentity identity;
  };
  Status AddFile(const std::string& path);
  Status AddIndexed(const std::string& index_path);
  Status AddMetadata(const std::map<std::string, std::string>& metadata, const std::string& path);
  Status Use(uint32_t file);
  StatusOr<OpenFile> OpenUnchanged(uint32_t file) const;

  std::string path_;
  std::vector<File> files_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  uint64_t header_bytes_ = 0;
  uint64_t fingerprint_ = 0;
  std::optional<uint32_t> in_use_;
  UniqueFd fd_;
  std::vector<std::byte> raw_;
};

}  // namespace luwu::interchange
