// The header of a safetensors file: eight bytes of length, JSON, then the tensors' bytes back to
// back. The file comes from anywhere, so the parser believes nothing: every tensor must lie in the
// file, and together they must cover it without overlap or hole.
//
// Pure functions, any thread. A bad header is kCorrupt with a message that names file and tensor.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/dtype.h"

namespace luwu::interchange {

// The limit of the reference implementation.
inline constexpr uint64_t kHeaderBytesMax = 100'000'000;
inline constexpr uint64_t kLengthBytes = 8;
inline constexpr size_t kShapeMax = 64;  // dimensions of one tensor

// All that the format knows with whole bytes; LuWu computes with F32, BF16 and F16.
enum class FileDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kC64,
};
std::string_view FileDTypeName(FileDType dtype);  // "BF16", as in files
std::optional<FileDType> ParseFileDType(std::string_view name);
uint64_t FileDTypeBytes(FileDType dtype);
std::optional<DType> UsableDType(FileDType dtype);  // none: not one of ours
FileDType FileDTypeOf(DType dtype);                 // `dtype` is supported (CHECKed)

struct TensorEntry {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;

  uint64_t elements() const { return (end - begin) / FileDTypeBytes(dtype); }
};

struct SafetensorsHeader {
  uint64_t data_offset = 0;          // of the tensors' bytes in the file
  std::vector<TensorEntry> tensors;  // by where they lie
  std::map<std::string, std::string> metadata;
};

// Length of the JSON from a file's first eight bytes.
StatusOr<uint64_t> ParseHeaderLength(const std::array<std::byte, kLengthBytes>& bytes,
                                     uint64_t file_bytes, const std::string& file);

// `json`: what lies behind the length; `file` names the file in messages.
StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t file_bytes,
                                                   const std::string& file);

// Length and JSON as they are written: filled up with spaces so that the data begin at a multiple
// of eight. `header.data_offset` is not looked at.
std::string EncodeSafetensorsHeader(const SafetensorsHeader& header);

// Bytes that a tensor's entry takes in the JSON, at most, wherever the tensor lies.
uint64_t EntryBytesMax(const TensorEntry& tensor);

// A name out of a file as it may stand in a message: quoted, short, printable.
std::string QuotedName(std::string_view name);
std::string ShapeText(const std::vector<uint64_t>& shape);  // "[2, 3]"

}  // namespace luwu::interchange
