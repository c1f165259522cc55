#include "client/cli/call_error.h"

#include <fmt/format.h>

#include "common/rpc/tls.h"

namespace luwu::cli {
namespace {

// gRPC's words: a daemon says what was waited for.
bool GaveUp(const Status& error) {
  return CodeOf(error) == ErrorCode::kDeadline && MessageOf(error) == "Deadline Exceeded";
}

bool IsUnconnected(const Status& error) {
  return MessageOf(error).starts_with("failed to connect to all addresses");
}

bool IsBroken(const Status& error) {
  const std::string message = MessageOf(error);
  return CodeOf(error) == ErrorCode::kUnavailable &&
         (message == "Socket closed" || message == "Connection reset by peer" ||
          message == "keepalive watchdog timeout");
}

std::string NameOf(const Callee& callee) {
  if (callee.name.empty()) return "the daemon at " + callee.address;
  return fmt::format("node {} ({})", callee.name, callee.address);
}

}  // namespace

std::string Reason(const Status& error) {
  if (GaveUp(error)) return "no answer in time: stopped, overloaded or out of reach";
  const std::string message = MessageOf(error);
  if (!IsUnconnected(error)) return ToString(error);
  const bool refused = message.find("Connection refused") != std::string::npos;
  const size_t colon = message.rfind(": ");
  if (colon == std::string::npos) return "cannot connect";
  return "cannot connect: " + (refused ? "connection refused" : message.substr(colon + 2)) +
         rpc::TlsHint(message);
}

Status CallError(const Status& error, const Callee& callee) {
  const ErrorCode code = CodeOf(error);
  if (error.ok() || code == ErrorCode::kCancelled) return error;
  if (GaveUp(error)) {
    return Error(code,
                 "{} has not answered within {} ms; its daemon is stopped, overloaded or out of "
                 "reach (--timeout-ms gives it longer)",
                 NameOf(callee), callee.timeout_ms);
  }
  if (IsUnconnected(error)) {
    return Error(code,
                 "no daemon answers at {} ({}); is luwud running there? (--endpoint or "
                 "LUWU_ENDPOINT names another)",
                 callee.address, Reason(error));
  }
  if (IsBroken(error)) {
    return Error(code, "{} has ended during the call; look at its log, start it and try again",
                 NameOf(callee));
  }
  return Annotate(error, NameOf(callee));
}

}  // namespace luwu::cli
