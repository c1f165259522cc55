#include <fmt/format.h>

#include "client/cli/table.h"
#include "tests/bench/report.h"

namespace luwu::bench {
namespace {

using cli::ShortBytes;
using cli::Table;
using R = TransferRound;
using CostOf = const Cost& (*)(const R&);

std::string Number(double value) { return fmt::format("{:.2f}", value); }

void AddCost(const Report& report, const char* name, CostOf cost, Table* table) {
  const auto ratio = [&](CostOf base) {
    return Number(
        report.Median([&](const R& r) { return cost(r).gb_per_s() / base(r).gb_per_s(); }));
  };
  table->AddRow(
      {name, Number(report.Median([&](const R& r) { return cost(r).gb_per_s(); })),
       fmt::format("{:.3f}", report.Median([&](const R& r) { return cost(r).cpu_s_per_gb(); })),
       ratio([](const R& r) -> const Cost& { return r.memcpy; }),
       ratio([](const R& r) -> const Cost& { return r.ring; }),
       ratio([](const R& r) -> const Cost& { return r.socket_one_way; }),
       ratio([](const R& r) -> const Cost& { return r.socket_both_ways; })});
}

std::string TransfersText(const Report& report) {
  Table table(
      {"TRANSFER", ">GB/s", ">CPU s/GB", ">/MEMCPY", ">/RING", ">/SOCKET", ">/SOCKET 2-WAY"});
  const auto add = [&](const char* name, CostOf cost) { AddCost(report, name, cost, &table); };
  add("memcpy in one process", [](const R& r) -> const Cost& { return r.memcpy; });
  add("memfd ring, copy in only", [](const R& r) -> const Cost& { return r.ring_parked; });
  add("memfd ring, copy in, read in place", [](const R& r) -> const Cost& { return r.ring; });
  add("memfd ring, copy in, SGD in place", [](const R& r) -> const Cost& { return r.ring_update; });
  add("loopback socket, one way", [](const R& r) -> const Cost& { return r.socket_one_way; });
  add("loopback socket, both ways, each way",
      [](const R& r) -> const Cost& { return r.socket_both_ways; });
  add("luwu push, parked in the slots", [](const R& r) -> const Cost& { return r.push; });
  add("luwu push + SGD update in place + commit",
      [](const R& r) -> const Cost& { return r.push_and_update; });
  add("luwu fetch", [](const R& r) -> const Cost& { return r.fetch; });
  add("luwu push and fetch at once, each way",
      [](const R& r) -> const Cost& { return r.both_ways; });

  Table latency({"LATENCY", ">p50 us", ">p99 us"});
  const auto add_latency = [&](const char* name, const Latency& (*of)(const R&)) {
    latency.AddRow(
        {name, fmt::format("{:.1f}", report.Median([&](const R& r) { return of(r).p50_us; })),
         fmt::format("{:.1f}", report.Median([&](const R& r) { return of(r).p99_us; }))});
  };
  add_latency("gRPC unary echo, 16 bytes", [](const R& r) -> const Latency& { return r.echo; });
  add_latency("luwu fetch, 4 KiB", [](const R& r) -> const Latency& { return r.small_fetch; });
  std::string out = fmt::format("Isolated transfers, {} per worker, median of {} rounds\n\n{}\n{}",
                                ShortBytes(report.rounds[0].push.bytes / report.options.workers),
                                report.rounds.size(), table.Render(), latency.Render());
  if (report.has_view) {
    out += fmt::format("luwu view: {:.1f} us for a layer, no byte copied\n",
                       report.Median([&](const R& r) {
                         return 1e6 * r.view.seconds / static_cast<double>(report.transfer_layers);
                       }));
  }
  return out + "\n";
}

std::string StepsText(const Report& report) {
  Table table({">STEP", ">TIME s", ">FETCHED", ">GB/s", ">PUSHED", ">GB/s", ">UPDATE GB/s/THREAD",
               ">HIDDEN", ">CPU s WORKERS", ">DAEMONS", ">4 KiB p50 us", ">p99 us"});
  const auto row = [&](const std::string& name, const StepSample& s) {
    table.AddRow({name, fmt::format("{:.3f}", s.seconds), ShortBytes(s.fetched_bytes),
                  Number(s.fetch_gb_per_s()), ShortBytes(s.pushed_bytes), Number(s.push_gb_per_s()),
                  Number(report.UpdateGbPerThreadSecond(s)),
                  fmt::format("{:.0f} %", 100 * s.hidden_share()), Number(s.worker_cpu_s),
                  Number(s.daemon_cpu_s), fmt::format("{:.1f}", s.small_fetch.p50_us),
                  fmt::format("{:.1f}", s.small_fetch.p99_us)});
  };
  for (size_t i = 0; i < report.steps.size(); ++i) row(std::to_string(i + 1), report.steps[i]);
  return fmt::format(
      "Training steps, compute {:.1f} ms a layer forward and twice that backward\n\n{}\n"
      "median: step {:.3f} s, update {:.1f} GB/s a thread, {:.0f} % of the update time hidden\n\n",
      report.options.compute_ms, table.Render(),
      report.StepMedian([](const StepSample& s) { return s.seconds; }),
      report.StepMedian([&](const StepSample& s) { return report.UpdateGbPerThreadSecond(s); }),
      100 * report.StepMedian([](const StepSample& s) { return s.hidden_share(); }));
}

}  // namespace

std::string ReportText(const Report& report) {
  const TrainOptions& options = report.options;
  std::string out = fmt::format(
      "luwu-bench train: {} parameters in {} layers, {} worker(s), {} daemon(s), {}, {} on the "
      "wire\n{} CPUs ({}), {}; other processes took {:.0f} % of the CPU time\n\n",
      cli::ShortCount(report.params), options.layers.size(), options.workers, options.daemons,
      options.transport, options.wire_dtype, report.machine.cpus, report.machine.cpu_model,
      ShortBytes(report.machine.memory_bytes), 100 * report.others_cpu_share);
  if (!report.rounds.empty()) out += TransfersText(report);
  if (!report.steps.empty()) out += StepsText(report);
  const std::vector<Aim> aims = AimsOf(report);
  if (aims.empty()) return out;
  Table table({"AIM", ">MEASURED", "WANTED", "MET"});
  for (const Aim& aim : aims) {
    table.AddRow({aim.name, fmt::format("{:.3f}", aim.value),
                  fmt::format("{} {}", aim.at_least ? ">=" : "<=", aim.bound),
                  aim.met() ? "yes" : "no"});
  }
  return out + table.Render();
}

}  // namespace luwu::bench
