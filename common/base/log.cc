#include "common/base/log.h"

#include <atomic>
#include <memory>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "common/base/sync.h"

namespace luwu {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kOff};
std::atomic<bool> g_journald{false};

struct SinkSlot {
  Mutex mutex;
  LogSink sink LUWU_GUARDED_BY(mutex) = nullptr;
  void* context LUWU_GUARDED_BY(mutex) = nullptr;
};
// Never destroyed: threads may log while the process exits.
SinkSlot& Sink() {
  static SinkSlot& slot = *std::make_unique<SinkSlot>().release();
  return slot;
}

spdlog::logger& Logger() {
  static spdlog::logger logger("luwu", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return logger;
}

spdlog::level::level_enum Native(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

// sd-daemon(3) priorities.
const char* JournaldPrefix(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "<7>";
    case LogLevel::kInfo:
      return "<6>";
    case LogLevel::kWarning:
      return "<4>";
    default:
      return "<3>";
  }
}

}  // namespace

void InitLog(LogLevel level, bool journald) {
  Logger().set_level(spdlog::level::trace);
  Logger().set_pattern(journald ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %L %t %v");
  Logger().flush_on(spdlog::level::debug);
  g_journald = journald;
  g_level = level;
}

void SetLogLevel(LogLevel level) { g_level = level; }

bool ParseLogLevel(std::string_view text, LogLevel* level) {
  static constexpr std::pair<std::string_view, LogLevel> kNames[] = {
      {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo}, {"warning", LogLevel::kWarning},
      {"error", LogLevel::kError}, {"off", LogLevel::kOff},
  };
  for (const auto& [name, value] : kNames) {
    if (text == name) {
      *level = value;
      return true;
    }
  }
  return false;
}

bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void SetLogSink(LogSink sink, void* context) {
  MutexLock lock(Sink().mutex);
  Sink().sink = sink;
  Sink().context = context;
}

void LogLine(LogLevel level, std::string_view event, const std::string& fields) {
  {
    MutexLock lock(Sink().mutex);
    if (Sink().sink != nullptr) {
      Sink().sink(level, fmt::format("{} {}", event, fields).c_str(), Sink().context);
      return;
    }
  }
  Logger().log(Native(level), "{}{} {}", g_journald ? JournaldPrefix(level) : "", event, fields);
}

}  // namespace luwu
