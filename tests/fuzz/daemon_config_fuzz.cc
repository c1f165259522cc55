// A daemon's configuration file. What is accepted comes back the same from what we print of it;
// what is refused is refused with a message of one readable line for each error.
#include <algorithm>
#include <cstdint>
#include <string>

#include "common/base/check.h"
#include "server/config.h"

namespace luwu {
namespace {

int TryConfig(const uint8_t* data, size_t size) {
  const auto config = ParseConfig(std::string(data, data + size), "fuzz.toml");
  if (!config.ok()) {
    const std::string text = MessageOf(config.status());
    LUWU_CHECK(CodeOf(config.status()) == ErrorCode::kInvalidArgument, "the text is at fault");
    LUWU_CHECK(text.find("fuzz.toml") != std::string::npos, "the message names the file");
    return 0;
  }
  LUWU_CHECK(config->self < config->nodes.size(), "a daemon is one of the nodes");
  const std::string dumped = DumpConfig(*config);
  const auto again = ParseConfig(dumped, "dumped");
  LUWU_CHECK(again.ok(), "what is printed can be read");
  LUWU_CHECK(*again == *config, "the same configuration");
  LUWU_CHECK(DumpConfig(*again) == dumped, "the same text");
  return 0;
}

}  // namespace
}  // namespace luwu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::TryConfig(data, size);
}
