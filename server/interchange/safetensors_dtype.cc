// Element types of the format, and how names and shapes from files are shown.
#include <fmt/ranges.h>

#include "common/base/check.h"
#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {
namespace {

struct Format {
  FileDType dtype;
  std::string_view name;
  uint64_t bytes;
};
constexpr Format kFormats[] = {
    {FileDType::kBool, "BOOL", 1},      {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},          {FileDType::kF8E5M2, "F8_E5M2", 1},
    {FileDType::kF8E4M3, "F8_E4M3", 1}, {FileDType::kF8E8M0, "F8_E8M0", 1},
    {FileDType::kI16, "I16", 2},        {FileDType::kU16, "U16", 2},
    {FileDType::kF16, "F16", 2},        {FileDType::kBF16, "BF16", 2},
    {FileDType::kI32, "I32", 4},        {FileDType::kU32, "U32", 4},
    {FileDType::kF32, "F32", 4},        {FileDType::kF64, "F64", 8},
    {FileDType::kI64, "I64", 8},        {FileDType::kU64, "U64", 8},
    {FileDType::kC64, "C64", 8},
};

constexpr size_t kNameShownMax = 120;

const Format& FormatOf(FileDType dtype) { return kFormats[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view FileDTypeName(FileDType dtype) { return FormatOf(dtype).name; }

uint64_t FileDTypeBytes(FileDType dtype) { return FormatOf(dtype).bytes; }

std::optional<FileDType> ParseFileDType(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format.dtype;
  }
  return std::nullopt;
}

std::optional<DType> UsableDType(FileDType dtype) {
  switch (dtype) {
    case FileDType::kF32:
      return DType::kFloat32;
    case FileDType::kBF16:
      return DType::kBFloat16;
    case FileDType::kF16:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

FileDType FileDTypeOf(DType dtype) {
  LUWU_CHECK(IsSupported(dtype), "a dtype that files can have");
  if (dtype == DType::kBFloat16) return FileDType::kBF16;
  return dtype == DType::kFloat16 ? FileDType::kF16 : FileDType::kF32;
}

std::string QuotedName(std::string_view name) {
  std::string shown(name.substr(0, kNameShownMax));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return fmt::format("'{}{}'", shown, name.size() > kNameShownMax ? "..." : "");
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace luwu::interchange
