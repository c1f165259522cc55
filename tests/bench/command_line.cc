#include "tests/bench/command_line.h"

#include <cstdio>
#include <fstream>

namespace luwu::bench {
namespace {

std::string ParseCount(const std::string& text, uint64_t* count) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return "expected a number, with k, M or G after it if need be";
  }
  const std::string unit = text.substr(used);
  if (unit == "k" || unit == "K") value *= 1e3;
  if (unit == "M") value *= 1e6;
  if (unit == "G") value *= 1e9;
  if (!(unit.empty() || unit == "k" || unit == "K" || unit == "M" || unit == "G") || value < 1 ||
      value > 1e13) {
    return "expected a count between 1 and 10000G, such as 100M";
  }
  *count = static_cast<uint64_t>(value);
  return "";
}

}  // namespace

CLI::Option* AddCount(CLI::App* app, const std::string& name, uint64_t* count,
                      const std::string& description) {
  return app->add_option_function<std::string>(
      name,
      [name, count](const std::string& text) {
        const std::string error = ParseCount(text, count);
        if (!error.empty()) throw CLI::ValidationError(name, error);
      },
      description);
}

void AddDeviceOptions(CLI::App* app, DeviceOptions* options) {
  app->add_option("--dir", options->folder, "Folder on the device that is measured")->required();
  AddCount(app, "--params", &options->params, "Parameters")->default_str("100M");
  app->add_option("--layers", options->layers, "Equal layers to divide them into")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--rounds", options->rounds, "Measured rounds")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
}

void AddJsonOption(CLI::App* app, JsonTarget* target) {
  target->option = app->add_option("--json", target->file,
                                   "Write JSON to FILE, or to standard output without FILE")
                       ->expected(0, 1)
                       ->type_name("[FILE]");
}

Status WriteReport(const JsonTarget& target, const std::string& text, const Json& json) {
  const bool to_stdout = target.option->count() > 0 && target.file.empty();
  if (!to_stdout) std::fputs(text.c_str(), stdout);
  if (target.option->count() == 0) return OkStatus();
  const std::string dump = json.dump(2) + "\n";
  if (to_stdout) {
    std::fputs(dump.c_str(), stdout);
    return OkStatus();
  }
  std::ofstream file(target.file);
  file << dump;
  file.close();
  if (file) return OkStatus();
  return Error(ErrorCode::kUnavailable, "cannot write {}", target.file);
}

}  // namespace luwu::bench
