#include "common/rpc/address.h"

#include <charconv>
#include <cstdint>
#include <string_view>

namespace luwu::rpc {
namespace {

bool IsPort(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

bool IsHost(std::string_view text) {
  if (text.starts_with('[')) return text.size() > 2 && text.ends_with(']');
  return !text.empty() && text.find_first_of(":/[] \t\r\n") == std::string_view::npos;
}

}  // namespace

Status CheckAddress(const std::string& address) {
  constexpr std::string_view kUnix = "unix:/";
  const std::string_view text = address;
  if (text.starts_with(kUnix) && text.size() > kUnix.size()) return OkStatus();
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && IsHost(text.substr(0, colon)) &&
      IsPort(text.substr(colon + 1))) {
    return OkStatus();
  }
  return Error(ErrorCode::kInvalidArgument,
               "endpoint '{}' is not \"host:port\" with a port from 1 to 65535", address);
}

}  // namespace luwu::rpc
