// The index of a checkpoint in several files, as Hugging Face writes it
// (model.safetensors.index.json): which file has which tensor. It comes from anywhere, so a file
// is named in it by its bare name only: nothing outside the index's own folder is ever opened.
//
// Pure functions, any thread. A bad index is kCorrupt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace luwu::interchange {

inline constexpr uint64_t kIndexBytesMax = 100'000'000;
inline constexpr size_t kIndexFilesMax = 100'000;

struct SafetensorsIndex {
  std::vector<std::string> files;           // each once, sorted
  std::map<std::string, uint32_t> tensors;  // by name: number of the file
  // What is ours ("luwu."): as in the files' own metadata.
  std::map<std::string, std::string> metadata;
};

// `file` names the index in messages.
StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json, const std::string& file);

std::string EncodeSafetensorsIndex(const SafetensorsIndex& index, uint64_t total_bytes);

}  // namespace luwu::interchange
