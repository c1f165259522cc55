// A whole small file to the parser of safetensors headers. What it accepts must cover the file
// exactly, and must come back from what we write of it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/base/check.h"
#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {
namespace {

void CheckAccepted(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t at = header.data_offset;
  for (const TensorEntry& tensor : header.tensors) {
    LUWU_CHECK(header.data_offset + tensor.begin == at, "no overlap, no hole");
    uint64_t elements = 1;
    for (const uint64_t dimension : tensor.shape) elements *= dimension;
    LUWU_CHECK(elements == tensor.elements(), "the shape is the size");
    at += tensor.end - tensor.begin;
  }
  LUWU_CHECK(at == file_bytes, "covers the file");
}

void CheckRoundTrip(const SafetensorsHeader& header, uint64_t data_bytes) {
  const std::string written = EncodeSafetensorsHeader(header);
  LUWU_CHECK(written.size() % 8 == 0, "data are aligned");
  const auto again =
      ParseSafetensorsHeader(std::string_view(written).substr(8), written.size() + data_bytes, "w");
  LUWU_CHECK(again.ok(), "what is written can be read");
  LUWU_CHECK(again->metadata == header.metadata, "the same metadata");
  LUWU_CHECK(again->tensors.size() == header.tensors.size(), "the same tensors");
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorEntry& a = header.tensors[i];
    const TensorEntry& b = again->tensors[i];
    LUWU_CHECK(a.dtype == b.dtype && a.begin == b.begin && a.end == b.end, "the same places");
  }
}

int TryFile(const uint8_t* data, size_t size) {
  std::array<std::byte, kLengthBytes> length_bytes = {};
  if (size < length_bytes.size()) return 0;
  std::memcpy(length_bytes.data(), data, length_bytes.size());
  const auto length = ParseHeaderLength(length_bytes, size, "fuzz");
  if (!length.ok()) return 0;
  const std::string json(data + kLengthBytes, data + kLengthBytes + *length);
  const auto header = ParseSafetensorsHeader(json, size, "fuzz");
  if (!header.ok()) return 0;
  CheckAccepted(*header, size);
  CheckRoundTrip(*header, size - header->data_offset);
  return 0;
}

}  // namespace
}  // namespace luwu::interchange

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::interchange::TryFile(data, size);
}
