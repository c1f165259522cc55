#include "server/interchange/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

namespace luwu::interchange {
namespace {

using Json = nlohmann::json;

// Takes the JSON apart token by token: nothing is built but what the header may contain, so depth
// and size of what is not allowed cost nothing.
class HeaderTokens {
 public:
  explicit HeaderTokens(SafetensorsHeader* header) : header_(header) {}
  const std::string& error() const { return error_; }

  bool key(std::string& name) {
    if (place_ == Place::kTop) return BeginEntry(name);
    key_ = name;
    if (place_ == Place::kMetadata) {
      if (header_->metadata.contains(name)) {
        return Fail("__metadata__ has {} twice", QuotedName(name));
      }
      return true;
    }
    return BeginField(name);
  }
  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_->metadata.emplace(key_, std::move(value));
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a string");
    const std::optional<FileDType> dtype = ParseFileDType(value);
    if (!dtype) return Fail("{} has the unknown dtype {}", Tensor(), QuotedName(value));
    current().dtype = *dtype;
    return true;
  }
  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kShape) {
      if (current().shape.size() >= kShapeMax) {
        return Fail("{} has more than {} dimensions", Tensor(), kShapeMax);
      }
      current().shape.push_back(value);
      return true;
    }
    if (place_ != Place::kOffsets) return Unexpected("a number");
    if (offsets_ == 2) return Fail("{} has more than two data_offsets", Tensor());
    (offsets_++ == 0 ? current().begin : current().end) = value;
    return true;
  }
  bool start_object(size_t) {
    if (place_ == Place::kBefore) return Enter(Place::kTop);
    if (place_ != Place::kTop) return Unexpected("an object");
    return Enter(in_metadata_ ? Place::kMetadata : Place::kTensor);
  }
  bool end_object() {
    if (place_ == Place::kTop) return Enter(Place::kAfter);
    if (place_ == Place::kTensor) {
      if (fields_ != kAllFields) return Fail("{} lacks dtype, shape or data_offsets", Tensor());
      if (offsets_ != 2) return Fail("{} needs two data_offsets", Tensor());
    }
    return Enter(Place::kTop);
  }
  bool start_array(size_t) {
    if (place_ != Place::kTensor || key_ == "dtype") return Unexpected("an array");
    return Enter(key_ == "shape" ? Place::kShape : Place::kOffsets);
  }
  bool end_array() { return Enter(Place::kTensor); }

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("a truth value"); }
  bool number_integer(int64_t) { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return Unexpected("a fraction or huge number"); }
  bool binary(std::vector<uint8_t>&) { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    return Fail("not JSON at byte {} of the header", position);
  }

 private:
  enum class Place : uint8_t { kBefore, kTop, kMetadata, kTensor, kShape, kOffsets, kAfter };
  static constexpr uint32_t kAllFields = 7;

  TensorEntry& current() { return header_->tensors.back(); }
  std::string Tensor() const {
    return in_metadata_ ? "__metadata__" : "tensor " + QuotedName(header_->tensors.back().name);
  }
  bool Enter(Place place) {
    place_ = place;
    return true;
  }
  bool BeginEntry(std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) {
      if (std::exchange(had_metadata_, true)) return Fail("__metadata__ is there twice");
      return true;
    }
    header_->tensors.emplace_back().name = std::move(name);
    fields_ = offsets_ = 0;
    return true;
  }
  bool BeginField(const std::string& name) {
    const uint32_t bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (bit == 0) return Fail("{} has the unknown field {}", Tensor(), QuotedName(name));
    if ((fields_ & bit) != 0) return Fail("{} has {} twice", Tensor(), name);
    fields_ |= bit;
    return true;
  }
  bool Unexpected(const char* what) {
    switch (place_) {
      case Place::kBefore:
        return Fail("the header is {}, not an object", what);
      case Place::kMetadata:
        return Fail("__metadata__ has {} at {}; only strings may be there", what, QuotedName(key_));
      case Place::kTop:
        return Fail("{} is {}, not an object", Tensor(), what);
      default:
        return Fail("{} has {} in its {}", Tensor(), what, key_);
    }
  }
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  SafetensorsHeader* const header_;
  Place place_ = Place::kBefore;
  std::string key_;
  bool in_metadata_ = false;
  bool had_metadata_ = false;
  uint32_t fields_ = 0;
  uint32_t offsets_ = 0;
  std::string error_;
};

// Empty, or what is wrong with the tensor by itself.
std::string CheckSize(const TensorEntry& tensor, uint64_t data_bytes) {
  const std::string name = QuotedName(tensor.name);
  if (tensor.begin > tensor.end) return fmt::format("tensor {} ends before it begins", name);
  if (tensor.end > data_bytes) {
    return fmt::format("tensor {} ends at byte {} of {} that the file has for tensors", name,
                       tensor.end, data_bytes);
  }
  std::optional<uint64_t> bytes = FileDTypeBytes(tensor.dtype);
  for (const uint64_t dimension : tensor.shape) {
    bytes = CheckedMul(*bytes, dimension);
    if (!bytes) return fmt::format("tensor {} has an impossible shape", name);
  }
  if (*bytes == tensor.end - tensor.begin) return "";
  return fmt::format("tensor {} of shape {} and dtype {} takes {} bytes, but has {} in the file",
                     name, ShapeText(tensor.shape), FileDTypeName(tensor.dtype), *bytes,
                     tensor.end - tensor.begin);
}

std::string FindDuplicate(const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  return twice == names.end() ? "" : fmt::format("tensor {} is there twice", QuotedName(*twice));
}

// Empty, or what is wrong with how the tensors, in order, lie beside each other.
std::string CheckCoverage(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin < at) {
      return fmt::format("tensor {} overlaps the one before it", QuotedName(tensor.name));
    }
    if (tensor.begin > at) {
      return fmt::format("{} bytes before tensor {} belong to no tensor", tensor.begin - at,
                         QuotedName(tensor.name));
    }
    at = tensor.end;
  }
  if (at == data_bytes) return "";
  return fmt::format("{} bytes at the end of the file belong to no tensor", data_bytes - at);
}

std::string CheckTensors(std::vector<TensorEntry>* tensors, uint64_t data_bytes) {
  for (const TensorEntry& tensor : *tensors) {
    if (std::string wrong = CheckSize(tensor, data_bytes); !wrong.empty()) return wrong;
  }
  if (std::string wrong = FindDuplicate(*tensors); !wrong.empty()) return wrong;
  std::stable_sort(tensors->begin(), tensors->end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  return CheckCoverage(*tensors, data_bytes);
}

Status Bad(const std::string& file, const std::string& what) {
  return Error(ErrorCode::kCorrupt, "'{}' is no valid safetensors file: {}", file, what);
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string EntryText(const TensorEntry& tensor) {
  std::string shape = ShapeText(tensor.shape);
  std::erase(shape, ' ');
  return fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                     Quoted(tensor.name), FileDTypeName(tensor.dtype), shape, tensor.begin,
                     tensor.end);
}

}  // namespace

StatusOr<uint64_t> ParseHeaderLength(const std::array<std::byte, kLengthBytes>& bytes,
                                     uint64_t file_bytes, const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kHeaderBytesMax) {
    return Bad(file, fmt::format("its header would have {} bytes; at most {} are allowed", length,
                                 kHeaderBytesMax));
  }
  if (!RangeFits(kLengthBytes, length, file_bytes)) {
    return Bad(file, fmt::format("its header would have {} bytes, but the file has {}", length,
                                 file_bytes));
  }
  return length;
}

StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t file_bytes,
                                                   const std::string& file) {
  if (!RangeFits(kLengthBytes, json.size(), file_bytes)) {
    return Bad(file, "it is shorter than its header");
  }
  if (!json.starts_with('{')) return Bad(file, "its header does not begin with '{'");
  // The JSON library takes a zero byte as the end and would not look at what follows.
  if (const size_t zero = json.find('\0'); zero != json.npos) {
    return Bad(file, fmt::format("not JSON at byte {} of the header", zero));
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + json.size();
  HeaderTokens tokens(&header);
  if (!Json::sax_parse(json.begin(), json.end(), &tokens)) return Bad(file, tokens.error());
  std::string wrong = CheckTensors(&header.tensors, file_bytes - header.data_offset);
  if (!wrong.empty()) return Bad(file, wrong);
  return header;
}

std::string EncodeSafetensorsHeader(const SafetensorsHeader& header) {
  std::string json = "{";
  if (!header.metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [name, value] : header.metadata) {
      if (json.back() != '{') json += ',';
      json += Quoted(name) + ':' + Quoted(value);
    }
    json += '}';
  }
  for (const TensorEntry& tensor : header.tensors) {
    if (json.size() > 1) json += ',';
    json += EntryText(tensor);
  }
  json += '}';
  json.resize(AlignUp(json.size(), 8), ' ');
  const uint64_t length = json.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + json;
}

uint64_t EntryBytesMax(const TensorEntry& tensor) {
  TensorEntry farthest = tensor;
  farthest.begin = farthest.end = ~uint64_t{0};
  return EntryText(farthest).size() + 1;
}

}  // namespace luwu::interchange
