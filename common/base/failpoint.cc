#include "common/base/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"

namespace luwu::failpoint {

std::atomic<bool> active{false};

namespace {

enum class Action { kOff, kError, kDelay, kKill };

struct Rule {
  Action action = Action::kOff;
  int argument = 0;   // errno, or milliseconds
  uint64_t only = 0;  // the hit that counts; 0: all
};

struct Table {
  Mutex mutex;
  std::map<std::string, Rule> rules LUWU_GUARDED_BY(mutex);
  std::map<std::string, uint64_t> counts LUWU_GUARDED_BY(mutex);
  std::string log LUWU_GUARDED_BY(mutex);
};

Table& TheTable() {
  static Table table;
  return table;
}

constexpr std::array<std::pair<std::string_view, int>, 5> kErrors = {{
    {"ENOSPC", ENOSPC},
    {"EIO", EIO},
    {"EDQUOT", EDQUOT},
    {"EINTR", EINTR},
    {"EAGAIN", EAGAIN},
}};

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int> ErrorNumber(std::string_view text) {
  for (const auto& [name, number] : kErrors) {
    if (name == text) return number;
  }
  const std::optional<uint64_t> number = Number(text);
  if (!number || *number == 0 || *number > 4095) return std::nullopt;
  return static_cast<int>(*number);
}

// "error(EIO)@3", all of it.
std::optional<Rule> ParseRule(std::string_view text) {
  Rule rule;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    const std::optional<uint64_t> only = Number(text.substr(at + 1));
    if (!only || *only == 0) return std::nullopt;
    rule.only = *only;
    text = text.substr(0, at);
  }
  std::string_view argument;
  if (const size_t open = text.find('('); open != std::string_view::npos) {
    if (text.back() != ')') return std::nullopt;
    argument = text.substr(open + 1, text.size() - open - 2);
    text = text.substr(0, open);
  }
  std::optional<int> value = 0;
  if (text == "error") {
    rule.action = Action::kError;
    value = ErrorNumber(argument);
  } else if (text == "delay") {
    rule.action = Action::kDelay;
    const std::optional<uint64_t> delay_ms = Number(argument);
    value = delay_ms && *delay_ms <= 600'000 ? std::optional(static_cast<int>(*delay_ms))
                                             : std::nullopt;
  } else if (text == "kill" || text == "off") {
    rule.action = text == "kill" ? Action::kKill : Action::kOff;
    if (!argument.empty()) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (!value) return std::nullopt;
  rule.argument = *value;
  return rule;
}

void AppendToLog(const std::string& path, const char* name) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  const std::string line = std::string(name) + "\n";
  if (fd.valid() && ::write(fd.get(), line.data(), line.size()) < 0) return;  // only a report
}

// Runs before main(): a daemon needs no code for it.
[[maybe_unused]] const bool configured_by_environment = [] {
  const char* text = std::getenv("LUWU_FAILPOINTS");
  LUWU_CHECK(Configure(text == nullptr ? "" : text).ok(), "LUWU_FAILPOINTS cannot be read");
  return true;
}();

}  // namespace

Status Configure(const std::string& text) {
  std::map<std::string, Rule> rules;
  std::string_view left = text;
  while (!left.empty()) {
    const size_t end = left.find(';');
    const std::string_view part = left.substr(0, end);
    left = end == std::string_view::npos ? std::string_view() : left.substr(end + 1);
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::optional<Rule> rule = equals == std::string_view::npos || equals == 0
                                         ? std::nullopt
                                         : ParseRule(part.substr(equals + 1));
    if (!rule) {
      return Error(ErrorCode::kInvalidArgument,
                   "failpoint '{}': write name=error(EIO), name=delay(MS), name=kill or name=off, "
                   "each with @N for the N-th time only",
                   part);
    }
    rules[std::string(part.substr(0, equals))] = *rule;
  }
  Table& table = TheTable();
  const MutexLock lock(table.mutex);
  const char* log = std::getenv("LUWU_FAILPOINT_LOG");
  table.log = log == nullptr ? "" : log;
  table.rules = std::move(rules);
  table.counts.clear();
  active = !table.rules.empty() || !table.log.empty();
  return OkStatus();
}

std::map<std::string, uint64_t> Counts() {
  Table& table = TheTable();
  const MutexLock lock(table.mutex);
  return table.counts;
}

int Hit(const char* name) {
  Rule rule;
  std::string log;
  {
    Table& table = TheTable();
    const MutexLock lock(table.mutex);
    const uint64_t count = ++table.counts[name];
    if (count == 1) log = table.log;
    const auto found = table.rules.find(name);
    if (found != table.rules.end() && (found->second.only == 0 || found->second.only == count)) {
      rule = found->second;
    }
  }
  if (!log.empty()) AppendToLog(log, name);
  switch (rule.action) {
    case Action::kOff:
      return 0;
    case Action::kError:
      return rule.argument;
    case Action::kDelay:
      ::poll(nullptr, 0, rule.argument);
      return 0;
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      return 0;
  }
  return 0;
}

}  // namespace luwu::failpoint
