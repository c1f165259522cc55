// `luwu-bench optimizer`: the engine against the stream of the same loads and stores, case by case,
// and the whole daemon path against the engine alone.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/child.h"
#include "tests/bench/machine.h"
#include "tests/bench/optimizer/bench_case.h"

namespace luwu::bench {

struct CaseResult {
  BenchCase bench_case;
  double bytes_per_parameter = 0;
  std::vector<double> engine_ns;  // for each parameter, by round
  std::vector<double> stream_ns;  // of the style that was fastest over the rounds
  std::string stream_style;
  uint64_t page_faults = 0;  // in all measured engine passes
  uint64_t allocations = 0;

  double ratio() const;  // engine's speed / stream's, median over rounds
};

struct DaemonPathResult {
  bool measured = false;
  std::vector<double> daemon_ns;  // from the first close to the commit, for each parameter
  std::vector<double> engine_ns;  // the engine alone, in the same round
  uint64_t page_faults = 0;       // of the daemon's update threads, in all measured rounds
  double ratio() const;
};

struct OptimizerReport {
  OptimizerBenchOptions options;
  MachineInfo machine;
  double others_cpu_share = 0;
  std::string kernel;
  std::vector<CaseResult> cases;
  DaemonPathResult daemon;
};

Status RunOptimizerBench(const OptimizerBenchOptions& options, StopCheck stop,
                         OptimizerReport* report);

Json OptimizerJson(const OptimizerReport& report);
std::string OptimizerText(const OptimizerReport& report);

}  // namespace luwu::bench
