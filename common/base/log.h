// Structured log over spdlog: one line per event, the event name first, then key=value pairs:
//
//   LogInfo("session_opened", "job={} rank={} pid={}", job, rank, pid);
//
// An error is logged once, where it is detected. No secrets, no tensor contents. The client
// library never logs unless its user installs a sink (it must not write to stdout or stderr).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace luwu {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Text lines on stderr with a journald priority prefix when `journald`, else with time and level.
// Not thread-safe against logging; call it first in main().
void InitLog(LogLevel level, bool journald);
void SetLogLevel(LogLevel level);

// Sends lines to `sink` instead of stderr: how the client library logs, and only there. One call at
// a time; `line` ("event key=value ...", no time) lives during the call; the sink must not log.
// Null goes back to stderr. After it returns the former sink is not called any more.
using LogSink = void (*)(LogLevel level, const char* line, void* context);
void SetLogSink(LogSink sink, void* context);

// "debug", "info", "warning", "error", "off"; false for any other text.
bool ParseLogLevel(std::string_view text, LogLevel* level);

// Callable from any thread. The default level is kOff.
void LogLine(LogLevel level, std::string_view event, const std::string& fields);
bool LogEnabled(LogLevel level);

template <typename... Args>
void LogAt(LogLevel level, std::string_view event, fmt::format_string<Args...> format,
           Args&&... args) {
  if (LogEnabled(level)) LogLine(level, event, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kDebug, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kInfo, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kWarning, event, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(std::string_view event, fmt::format_string<Args...> format, Args&&... args) {
  LogAt(LogLevel::kError, event, format, std::forward<Args>(args)...);
}

}  // namespace luwu
