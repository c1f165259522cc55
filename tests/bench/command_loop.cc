#include "tests/bench/command_loop.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kIdleTimeoutMs = 24ull * 3600 * 1000;

StatusOr<Json> RunOne(const Json& command, const std::map<std::string, Handler>& handlers) {
  const auto handler = handlers.find(command.value("do", ""));
  if (handler == handlers.end()) {
    return Error(ErrorCode::kInvalidArgument, "no such command: {}", command.dump());
  }
  try {
    return handler->second(command);
  } catch (const Json::exception& error) {  // a parameter is missing or of the wrong type
    return Error(ErrorCode::kInvalidArgument, "{}: {}", command.dump(), error.what());
  }
}

}  // namespace

void RunCommands(Link link, const std::map<std::string, Handler>& handlers) {
  for (;;) {
    const StatusOr<Json> command = link.Receive(DeadlineAfter(kIdleTimeoutMs));
    if (!command.ok()) return;
    StatusOr<Json> reply = RunOne(*command, handlers);
    const Json message = reply.ok() ? *std::move(reply) : Json{{"error", ToString(reply.status())}};
    if (!link.Send(message).ok()) return;
  }
}

}  // namespace luwu::bench
