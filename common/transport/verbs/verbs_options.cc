#include "common/transport/verbs/verbs_options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace luwu::transport {
namespace {

constexpr uint32_t kPortMax = 254;
constexpr uint32_t kGidIndexMax = 65535;

StatusOr<uint32_t> NumberIn(std::string_view word, std::string_view text, uint32_t max) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > max) {
    return Error(ErrorCode::kInvalidArgument, "rdma: '{}' needs a number up to {}", word, max);
  }
  return value;
}

Status ParseWord(std::string_view word, VerbsOptions* options) {
  const size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  if (key == "device" && !value.empty()) {
    options->device = value;
    return OkStatus();
  }
  if (key == "port") {
    ASSIGN_OR_RETURN(options->port, NumberIn(word, value, kPortMax));
    return OkStatus();
  }
  if (key == "gid_index") {
    ASSIGN_OR_RETURN(const uint32_t index, NumberIn(word, value, kGidIndexMax));
    options->gid_index = static_cast<int32_t>(index);
    return OkStatus();
  }
  if (key == "mtu") {
    ASSIGN_OR_RETURN(options->mtu, NumberIn(word, value, 4096));
    const auto* end = std::end(kVerbsMtus);
    if (std::find(std::begin(kVerbsMtus), end, options->mtu) != end) return OkStatus();
    return Error(ErrorCode::kInvalidArgument,
                 "rdma: mtu is {}; choose 256, 512, 1024, 2048 or 4096", options->mtu);
  }
  if (key == "mode" && (value == "event" || value == "busy")) {
    options->busy_poll = value == "busy";
    return OkStatus();
  }
  return Error(ErrorCode::kInvalidArgument,
               "rdma: '{}' is not understood; words are device=NAME, port=N, gid_index=N, mtu=N, "
               "mode=event or mode=busy",
               word);
}

}  // namespace

StatusOr<VerbsOptions> ParseVerbsOptions(const std::string& text) {
  VerbsOptions options;
  std::string_view rest = text;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" ,"), rest.size()));
    if (rest.empty()) return options;
    const std::string_view word = rest.substr(0, rest.find_first_of(" ,"));
    RETURN_IF_ERROR(ParseWord(word, &options));
    rest.remove_prefix(word.size());
  }
}

}  // namespace luwu::transport
