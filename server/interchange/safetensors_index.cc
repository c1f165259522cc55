#include "server/interchange/safetensors_index.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kDepthMax = 8;  // of the metadata, of which little is read
constexpr std::string_view kOurs = "luwu.";

// Token by token as in safetensors_header.cc. "metadata" and fields that are not known may hold
// anything that is not deep; of metadata the texts that are ours are kept.
class IndexTokens {
 public:
  const std::string& error() const { return error_; }
  bool has_map() const { return has_map_; }
  std::map<std::string, std::string>& tensors() { return tensors_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool key(std::string& name) {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      in_metadata_ = name == "metadata";
      if (in_map_ && std::exchange(has_map_, true)) return Fail("weight_map is there twice");
    }
    key_ = std::move(name);
    return true;
  }
  bool string(std::string& value) {
    if (in_metadata_ && depth_ == 2 && key_.starts_with(kOurs)) {
      if (metadata_.emplace(key_, std::move(value)).second) return true;
      return Fail("metadata {} is there twice", QuotedName(key_));
    }
    if (!in_map_ || depth_ != 2) return Value("a string");
    if (!tensors_.emplace(key_, std::move(value)).second) {
      return Fail("tensor {} is there twice", QuotedName(key_));
    }
    return true;
  }
  bool start_object(size_t) {
    if (in_map_ && depth_ != 1) return Value("an object");
    return Deeper();
  }
  bool start_array(size_t) {
    if (in_map_ || depth_ == 0) return Value("an array");
    return Deeper();
  }
  bool end_object() {
    if (--depth_ == 1) in_map_ = in_metadata_ = false;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool null() { return Value("null"); }
  bool boolean(bool) { return Value("a truth value"); }
  bool number_integer(int64_t) { return Value("a number"); }
  bool number_unsigned(uint64_t) { return Value("a number"); }
  bool number_float(double, const std::string&) { return Value("a number"); }
  bool binary(std::vector<uint8_t>&) { return Value("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    return Fail("not JSON at byte {}", position);
  }

 private:
  bool Deeper() {
    if (++depth_ > kDepthMax) return Fail("more than {} levels of nesting", kDepthMax);
    return true;
  }
  bool Value(const char* what) {
    if (depth_ == 0) return Fail("it is {}, not an object", what);
    if (!in_map_) return true;
    if (depth_ == 1) return Fail("weight_map is {}, not an object", what);
    return Fail("weight_map has {} at {}; it wants a file's name", what, QuotedName(key_));
  }
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  std::map<std::string, std::string> tensors_;
  std::map<std::string, std::string> metadata_;
  uint32_t depth_ = 0;
  bool in_map_ = false;
  bool in_metadata_ = false;
  bool has_map_ = false;
  std::string key_;
  std::string error_;
};

Status Bad(const std::string& file, const std::string& what) {
  return Error(ErrorCode::kCorrupt, "'{}' is no valid index of safetensors files: {}", file, what);
}

// A bare name: what it names lies beside the index, and nowhere else.
bool IsBareName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json, const std::string& file) {
  // The JSON library takes a zero byte as the end and would not look at what follows.
  if (json.find('\0') != json.npos) return Bad(file, "not JSON: it has zero bytes");
  IndexTokens tokens;
  if (!Json::sax_parse(json.begin(), json.end(), &tokens)) return Bad(file, tokens.error());
  if (!tokens.has_map()) return Bad(file, "it has no weight_map");
  std::map<std::string, uint32_t> numbers;
  for (const auto& [tensor, name] : tokens.tensors()) {
    if (!IsBareName(name)) {
      return Bad(file, fmt::format("tensor {} lies in {}; only names of files in the same folder "
                                   "are allowed",
                                   QuotedName(tensor), QuotedName(name)));
    }
    numbers.emplace(name, 0);
  }
  if (numbers.size() > kIndexFilesMax) {
    return Bad(file, fmt::format("it names more than {} files", kIndexFilesMax));
  }
  SafetensorsIndex index;
  for (auto& [name, number] : numbers) {
    number = static_cast<uint32_t>(index.files.size());
    index.files.push_back(name);
  }
  for (const auto& [tensor, name] : tokens.tensors()) index.tensors.emplace(tensor, numbers[name]);
  index.metadata = std::move(tokens.metadata());
  return index;
}

std::string EncodeSafetensorsIndex(const SafetensorsIndex& index, uint64_t total_bytes) {
  std::string json = fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}", total_bytes);
  for (const auto& [key, value] : index.metadata) {
    json += fmt::format(",\n    {}: {}", Quoted(key), Quoted(value));
  }
  json += "\n  },\n";
  json += "  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [tensor, file] : index.tensors) {
    json += fmt::format("{}    {}: {}", separator, Quoted(tensor), Quoted(index.files[file]));
    separator = ",\n";
  }
  return json + "\n  }\n}\n";
}

}  // namespace luwu::interchange
