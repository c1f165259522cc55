#include <fmt/format.h>

#include "tests/bench/export/export_bench.h"
#include "tests/bench/samples.h"

namespace luwu::bench {
namespace {

Json KindJson(const ExportReport::Kind& kind) {
  std::vector<double> seconds, raw_seconds, ratios;
  for (const ExportRound& round : kind.rounds) {
    seconds.push_back(round.seconds);
    raw_seconds.push_back(round.raw_seconds);
    ratios.push_back(round.ratio());
  }
  return {{"read_bytes", kind.read_bytes},  {"written_bytes", kind.written_bytes},
          {"seconds", Median(seconds)},     {"raw_seconds", Median(raw_seconds)},
          {"ratio_to_raw", Median(ratios)}, {"ratios", ratios}};
}

}  // namespace

Json ExportJson(const ExportReport& report) {
  return {{"machine", ToJson(report.machine)},
          {"others_cpu_share", report.others_cpu_share},
          {"params", report.options.params},
          {"rounds", report.options.rounds},
          {"masters", KindJson(report.masters)},
          {"with_optimizer_state", KindJson(report.with_optimizer_state)}};
}

std::string ExportText(const ExportReport& report) {
  const Json json = ExportJson(report);
  std::string text = fmt::format("{} params\n", report.options.params);
  for (const char* name : {"masters", "with_optimizer_state"}) {
    const Json& kind = json[name];
    text +=
        fmt::format("{}: {:.2f} s to read {:.2f} and write {:.2f} GB, {:.2f} of the raw device\n",
                    name, kind["seconds"].get<double>(), kind["read_bytes"].get<double>() / 1e9,
                    kind["written_bytes"].get<double>() / 1e9, kind["ratio_to_raw"].get<double>());
  }
  return text;
}

}  // namespace luwu::bench
