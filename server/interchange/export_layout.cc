#include "server/interchange/export_layout.h"

#include <utility>

#include "server/interchange/safetensors_index.h"

namespace luwu::interchange {
namespace {

constexpr uint64_t kHeaderRoom = 64;  // braces, length, filling

uint64_t MetadataBytes(const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  return EncodeSafetensorsHeader(header).size();
}

StatusOr<uint64_t> BytesOf(const TensorEntry& tensor) {
  std::optional<uint64_t> bytes = FileDTypeBytes(tensor.dtype);
  for (const uint64_t dimension : tensor.shape) {
    if (bytes) bytes = CheckedMul(*bytes, dimension);
  }
  if (bytes) return *bytes;
  return Error(ErrorCode::kInvalidArgument, "tensor {} of shape {} is too large for a file",
               QuotedName(tensor.name), ShapeText(tensor.shape));
}

// The tensors of each file, in order, with their places.
StatusOr<std::vector<SafetensorsHeader>> Divide(const LayoutRequest& request) {
  std::vector<SafetensorsHeader> headers(1);
  headers[0].metadata = request.metadata;
  headers[0].metadata.insert(request.first_metadata.begin(), request.first_metadata.end());
  uint64_t header_bytes = kHeaderRoom + MetadataBytes(headers[0].metadata);
  const uint64_t later_bytes = kHeaderRoom + MetadataBytes(request.metadata);
  uint64_t at = 0;
  for (const TensorEntry& tensor : request.tensors) {
    ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(tensor));
    const uint64_t entry_bytes = EntryBytesMax(tensor);
    const bool fits = bytes <= request.file_bytes_max &&
                      at + header_bytes + entry_bytes <= request.file_bytes_max - bytes &&
                      header_bytes + entry_bytes <= kHeaderBytesMax;
    if (!fits && !headers.back().tensors.empty()) {
      headers.emplace_back().metadata = request.metadata;
      header_bytes = later_bytes;
      at = 0;
    }
    TensorEntry& placed = headers.back().tensors.emplace_back(tensor);
    placed.begin = at;
    placed.end = at += bytes;
    header_bytes += entry_bytes;
    if (header_bytes > kHeaderBytesMax) {
      return Error(ErrorCode::kInvalidArgument,
                   "the header of the file with tensor {} would have more than {} bytes",
                   QuotedName(tensor.name), kHeaderBytesMax);
    }
  }
  return headers;
}

}  // namespace

std::string IndexNameOf(const std::string& base) { return base + ".safetensors.index.json"; }
std::string SingleNameOf(const std::string& base) { return base + ".safetensors"; }

StatusOr<ExportLayout> LayOut(const LayoutRequest& request) {
  ASSIGN_OR_RETURN(const std::vector<SafetensorsHeader> headers, Divide(request));
  ExportLayout layout;
  layout.index_name = IndexNameOf(request.base);
  SafetensorsIndex index;
  for (const auto& [key, value] : request.metadata) {
    if (key.starts_with("luwu.")) index.metadata.emplace(key, value);
  }
  for (size_t i = 0; i < headers.size(); ++i) {
    const SafetensorsHeader& header = headers[i];
    LaidOutFile& file = layout.files.emplace_back();
    file.name = headers.size() == 1 ? SingleNameOf(request.base)
                                    : fmt::format("{}-{:05}-of-{:05}.safetensors", request.base,
                                                  i + 1, headers.size());
    file.header = EncodeSafetensorsHeader(header);
    const uint64_t data_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
    file.bytes = file.header.size() + data_bytes;
    layout.tensor_bytes += data_bytes;
    index.files.push_back(file.name);
    for (const TensorEntry& tensor : header.tensors) {
      index.tensors.emplace(tensor.name, static_cast<uint32_t>(i));
    }
  }
  if (headers.size() > 1) layout.index = EncodeSafetensorsIndex(index, layout.tensor_bytes);
  return layout;
}

}  // namespace luwu::interchange
