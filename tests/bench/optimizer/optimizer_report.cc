#include <fmt/format.h>

#include "client/cli/table.h"
#include "tests/bench/optimizer/optimizer_bench.h"
#include "tests/bench/samples.h"

namespace luwu::bench {
namespace {

Json CaseJson(const CaseResult& result) {
  const BenchCase& c = result.bench_case;
  const double engine_ns = Median(result.engine_ns);
  Json json = {{"name", c.name},
               {"optimizer", OptimizerName(c.optimizer.kind)},
               {"state_precision", StatePrecisionName(c.optimizer.state_precision)},
               {"master_format", MasterFormatName(c.optimizer.master_format)},
               {"gradient_dtype", DTypeName(c.gradient_dtype)},
               {"served_dtype", DTypeName(c.served_dtype)},
               {"workers", c.workers},
               {"threads", c.threads},
               {"in_place", c.in_place},
               {"portable", c.variant == KernelVariant::kPortable},
               {"bytes_per_parameter", result.bytes_per_parameter},
               {"engine_ns_per_parameter", engine_ns},
               {"stream_ns_per_parameter", Median(result.stream_ns)},
               {"engine_gb_per_s", result.bytes_per_parameter / engine_ns},
               {"ratio_to_stream", result.ratio()},
               {"stream_style", result.stream_style},
               {"page_faults", result.page_faults},
               {"allocations", result.allocations}};
  if (c.aim > 0) {
    json["aim"] = c.aim;
    json["met"] = result.ratio() >= c.aim;
  }
  return json;
}

}  // namespace

Json OptimizerJson(const OptimizerReport& report) {
  Json json = {{"machine", ToJson(report.machine)}, {"others_cpu_share", report.others_cpu_share},
               {"kernel_variant", report.kernel},   {"params", report.options.params},
               {"rounds", report.options.rounds},   {"cases", Json::array()}};
  for (const CaseResult& result : report.cases) json["cases"].push_back(CaseJson(result));
  if (report.daemon.measured) {
    json["daemon_path"] = {{"daemon_ns_per_parameter", Median(report.daemon.daemon_ns)},
                           {"engine_ns_per_parameter", Median(report.daemon.engine_ns)},
                           {"ratio_to_engine", report.daemon.ratio()},
                           {"page_faults", report.daemon.page_faults},
                           {"aim", 0.8},
                           {"met", report.daemon.ratio() >= 0.8}};
  }
  return json;
}

std::string OptimizerText(const OptimizerReport& report) {
  cli::Table table({"CASE", ">THREADS", ">B/PARAM", ">ns/PARAM", ">GB/s", ">/STREAM", ">AIM",
                    ">FAULTS", ">ALLOCATIONS"});
  for (const CaseResult& result : report.cases) {
    const double ns = Median(result.engine_ns);
    const double aim = result.bench_case.aim;
    table.AddRow({result.bench_case.name, fmt::format("{}", result.bench_case.threads),
                  fmt::format("{:.0f}", result.bytes_per_parameter), fmt::format("{:.3f}", ns),
                  fmt::format("{:.1f}", result.bytes_per_parameter / ns),
                  fmt::format("{:.2f}", result.ratio()), aim > 0 ? fmt::format("{:.2f}", aim) : "",
                  fmt::format("{}", result.page_faults), fmt::format("{}", result.allocations)});
  }
  std::string out = fmt::format(
      "{} parameters, {} kernels, medians of {} rounds; others used {:.0f} % of the CPUs\n\n",
      report.options.params, report.kernel, report.options.rounds, 100 * report.others_cpu_share);
  if (!report.cases.empty()) out += table.Render();
  if (report.daemon.measured) {
    out += fmt::format(
        "\ndaemon path, 2 workers by shm: {:.3f} ns a parameter, {:.2f} of the engine alone "
        "({:.3f} ns), {} page faults of update threads\n",
        Median(report.daemon.daemon_ns), report.daemon.ratio(), Median(report.daemon.engine_ns),
        report.daemon.page_faults);
  }
  return out;
}

}  // namespace luwu::bench
