#include <fmt/format.h>

#include <functional>

#include "client/cli/table.h"
#include "tests/bench/samples.h"
#include "tests/bench/spill/spill_bench.h"

namespace luwu::bench {
namespace {

constexpr double kPaperGbPerS = 26;          // each way, twelve SSDs
constexpr double kPaperParamsPerS = 1.86e9;  // at 14 bytes a parameter

template <typename Sample>
double MedianOf(const std::vector<Sample>& samples,
                const std::function<double(const Sample&)>& value) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(value(sample));
  return Median(values);
}

Json RoundsJson(const std::vector<SpillRound>& rounds, double params) {
  const double seconds =
      MedianOf<SpillRound>(rounds, [](const SpillRound& round) { return round.step.seconds; });
  const auto median = [&](double (*value)(const SpillRound&)) {
    return MedianOf<SpillRound>(rounds, value);
  };
  return {{"step_seconds", seconds},
          {"raw_seconds", median([](const SpillRound& round) { return round.raw_seconds; })},
          {"ratio_to_raw", median([](const SpillRound& round) { return round.ratio(); })},
          {"params_per_s", params / seconds},
          {"read_bytes_per_parameter",
           median([](const SpillRound& round) { return double(round.step.read_bytes); }) / params},
          {"written_bytes_per_parameter", median([](const SpillRound& round) {
                                            return double(round.step.written_bytes);
                                          }) / params}};
}

}  // namespace

Json SpillJson(const SpillReport& report) {
  const auto params = static_cast<double>(report.options.params);
  const double step =
      MedianOf<SpillStep>(report.trained, [](const SpillStep& each) { return each.seconds; });
  Json json = {{"machine", ToJson(report.machine)},
               {"others_cpu_share", report.others_cpu_share},
               {"engine", report.options.engine},
               {"direct_io", report.direct},
               {"params", report.options.params},
               {"rounds", report.options.rounds},
               {"memory_bytes", report.memory_bytes},
               {"oversubscription", report.options.oversubscription},
               {"resident_bytes", report.tiers.resident_bytes},
               {"spilled_bytes", report.tiers.spilled_bytes},
               {"buffers", report.tiers.buffers},
               {"raw_read_gb_per_s", Median(report.raw_read_gb_per_s)},
               {"raw_write_gb_per_s", Median(report.raw_write_gb_per_s)},
               {"raw_read_and_write_gb_per_s_each_way", Median(report.raw_both_gb_per_s)},
               {"streamed", RoundsJson(report.streamed, params)},
               {"durable", RoundsJson(report.durable, params)},
               {"write_amplification", report.write_amplification},
               {"space", report.space},
               {"recovery",
                {{"open_seconds", report.recovery.open_seconds},
                 {"restore_seconds", report.recovery.restore_seconds},
                 {"read_bytes", report.recovery.read_bytes}}}};
  const double plain = json["durable"]["step_seconds"].get<double>();
  const double after = MedianOf<SpillStep>(report.after_checkpoint,
                                           [](const SpillStep& each) { return each.seconds; });
  json["checkpoint"] = {{"seconds", Median(report.checkpoint_seconds)},
                        {"step_seconds_after", after},
                        {"step_ratio", after / plain}};
  json["training"] = {
      {"workers", 2},
      {"compute_seconds", report.compute_seconds},
      {"step_seconds", step},
      {"exposed_share", MedianOf<SpillStep>(report.trained,
                                            [](const SpillStep& each) {
                                              return each.exposed_seconds / each.seconds;
                                            })},
      {"device_busy_share", MedianOf<SpillStep>(report.trained, [](const SpillStep& each) {
         return each.busy_seconds / each.seconds;
       })}};
  const double both = Median(report.raw_both_gb_per_s);
  json["paper"] = {{"params_per_s_at_its_device", kPaperParamsPerS},
                   {"params_per_s_scaled_to_this_device", kPaperParamsPerS * both / kPaperGbPerS}};
  return json;
}

std::string SpillText(const SpillReport& report) {
  const Json json = SpillJson(report);
  const auto number = [](const Json& value) { return value.get<double>(); };
  std::string text = fmt::format(
      "{} params, engine {}, direct I/O: {}; memory {:.0f} MB (1/{} of what it would take), {:.0f} "
      "MB of state resident, {:.0f} MB spilled, {} buffers\n",
      report.options.params, report.options.engine, report.direct ? "yes" : "no",
      double(report.memory_bytes) / 1e6, report.options.oversubscription,
      double(report.tiers.resident_bytes) / 1e6, double(report.tiers.spilled_bytes) / 1e6,
      report.tiers.buffers);
  text += fmt::format("raw device: read {:.2f}, write {:.2f}, both ways {:.2f} GB/s each\n",
                      number(json["raw_read_gb_per_s"]), number(json["raw_write_gb_per_s"]),
                      number(json["raw_read_and_write_gb_per_s_each_way"]));
  for (const char* name : {"streamed", "durable"}) {
    const Json& part = json[name];
    text += fmt::format(
        "{}: {:.3f} s a step, {:.2f} of the raw device, {:.1f} M params/s, {:.2f} B read and "
        "{:.2f} "
        "B written a parameter\n",
        name, number(part["step_seconds"]), number(part["ratio_to_raw"]),
        number(part["params_per_s"]) / 1e6, number(part["read_bytes_per_parameter"]),
        number(part["written_bytes_per_parameter"]));
  }
  text += fmt::format("write amplification {:.3f}, space {:.2f} x one generation\n",
                      report.write_amplification, report.space);
  text +=
      fmt::format("checkpoint: {:.3f} s; the step after it takes {:.2f} of another\n",
                  number(json["checkpoint"]["seconds"]), number(json["checkpoint"]["step_ratio"]));
  text += fmt::format(
      "training, 2 workers, {:.2f} s of compute: {:.2f} s a step, {:.1f} % exposed, device busy "
      "{:.1f} %\n",
      report.compute_seconds, number(json["training"]["step_seconds"]),
      100 * number(json["training"]["exposed_share"]),
      100 * number(json["training"]["device_busy_share"]));
  text += fmt::format("recovery: {:.2f} s to open, {:.2f} s to restore {:.0f} MB\n",
                      report.recovery.open_seconds, report.recovery.restore_seconds,
                      double(report.recovery.read_bytes) / 1e6);
  text += fmt::format("the paper's server, scaled to this device: {:.1f} M params/s\n",
                      number(json["paper"]["params_per_s_scaled_to_this_device"]) / 1e6);
  return text;
}

}  // namespace luwu::bench
