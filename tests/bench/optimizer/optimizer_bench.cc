#include "tests/bench/optimizer/optimizer_bench.h"

#include <algorithm>
#include <cstdio>

#include "server/optim/optimizer.h"
#include "tests/bench/optimizer/case_runner.h"
#include "tests/bench/optimizer/daemon_path.h"
#include "tests/bench/samples.h"

namespace luwu::bench {
namespace {

std::string StyleName(const StreamStyle& style) {
  std::string name = style.stream_state ? "state past the caches" : "state in place";
  if (style.stream_served) name += ", served past the caches";
  if (style.prefetch_lines > 0) name += fmt::format(", prefetch {} lines", style.prefetch_lines);
  return name;
}

// Engine and every style of stream once in each round; the first round warms up.
CaseResult RunCase(const BenchCase& bench_case, uint64_t rounds, CaseMemory* memory) {
  const std::vector<CaseShard>& shards = memory->Prepare(bench_case);
  CaseRunner runner(bench_case, shards);
  const double params = static_cast<double>(shards.size() * kBenchShardElements);
  const std::vector<StreamStyle> styles = runner.Styles();
  std::vector<std::vector<double>> streams(styles.size());
  CaseResult result;
  result.bench_case = bench_case;
  result.bytes_per_parameter = runner.bytes_per_parameter();
  for (uint64_t round = 0; round <= rounds; ++round) {
    std::vector<double> stream_ns;
    for (const StreamStyle& style : styles) {
      stream_ns.push_back(runner.StreamPass(style).seconds / params * 1e9);
    }
    const PassCost cost = runner.Engine();
    if (round == 0) continue;
    for (size_t i = 0; i < styles.size(); ++i) streams[i].push_back(stream_ns[i]);
    result.engine_ns.push_back(cost.seconds / params * 1e9);
    result.page_faults += cost.page_faults;
    result.allocations += cost.allocations;
  }
  const auto fastest =
      std::min_element(streams.begin(), streams.end(),
                       [](const auto& a, const auto& b) { return Median(a) < Median(b); });
  result.stream_ns = *fastest;
  result.stream_style = StyleName(styles[static_cast<size_t>(fastest - streams.begin())]);
  return result;
}

double MedianRatio(const std::vector<double>& ceiling_ns, const std::vector<double>& ns) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ns.size(); ++i) ratios.push_back(ceiling_ns[i] / ns[i]);
  return Median(ratios);
}

}  // namespace

double CaseResult::ratio() const { return MedianRatio(stream_ns, engine_ns); }
double DaemonPathResult::ratio() const { return MedianRatio(engine_ns, daemon_ns); }

Status RunOptimizerBench(const OptimizerBenchOptions& options, StopCheck stop,
                         OptimizerReport* report) {
  ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, MakeCases(options));
  const OthersMeter others;
  report->options = options;
  report->machine = DescribeMachine();
  report->kernel = optim::KernelName();
  if (!cases.empty()) {
    ASSIGN_OR_RETURN(CaseMemory memory, CaseMemory::Create(cases, options.params));
    for (const BenchCase& bench_case : cases) {
      if (stop()) return Error(ErrorCode::kCancelled, "stopped");
      std::fprintf(stderr, "\r\033[Kcase %zu of %zu: %s, %u threads", report->cases.size() + 1,
                   cases.size(), bench_case.name.c_str(), bench_case.threads);
      report->cases.push_back(RunCase(bench_case, options.rounds, &memory));
    }
    std::fputs("\n", stderr);
  }
  if (options.daemon) RETURN_IF_ERROR(RunDaemonPath(options, stop, &report->daemon));
  report->others_cpu_share = others.Share();
  return OkStatus();
}

}  // namespace luwu::bench
