// How tensors are laid out in one file or in several: names of files, offsets, headers. A set of
// files has a base name: "model" becomes model.safetensors, or model-00001-of-00003.safetensors and
// so on with model.safetensors.index.json, as Hugging Face names them.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {

struct LayoutRequest {
  std::string base;                  // "model"
  std::vector<TensorEntry> tensors;  // name, dtype and shape, in the order wanted
  // A file gets no further tensor that would make it larger, header and all: only a tensor that is
  // larger by itself makes a larger file.
  uint64_t file_bytes_max = 0;
  std::map<std::string, std::string> metadata;  // of every file, and of the index what is ours
  // Of the first file only.
  std::map<std::string, std::string> first_metadata;
};

struct LaidOutFile {
  std::string name;
  std::string header;  // as EncodeSafetensorsHeader
  uint64_t bytes = 0;  // of the whole file
};

struct ExportLayout {
  std::vector<LaidOutFile> files;  // at least one
  std::string index_name;
  std::string index;  // empty with one file
  uint64_t tensor_bytes = 0;
};

// kInvalidArgument names a tensor whose size overflows, or a header that would be too long.
StatusOr<ExportLayout> LayOut(const LayoutRequest& request);

std::string IndexNameOf(const std::string& base);   // "model.safetensors.index.json"
std::string SingleNameOf(const std::string& base);  // "model.safetensors"

}  // namespace luwu::interchange
