#include "tests/bench/steps.h"

#include <algorithm>
#include <cstdio>

#include "tests/bench/workers.h"

namespace luwu::bench {
namespace {

struct Run {
  const TrainOptions& options;
  const BenchJob job;
  Daemons* daemons;
  std::vector<Child> workers;
};

UpdateCounts Difference(const UpdateCounts& after, const UpdateCounts& before) {
  return {.elements = after.elements - before.elements,
          .thread_seconds_sum = after.thread_seconds_sum - before.thread_seconds_sum,
          .alone_seconds_max = after.alone_seconds_max - before.alone_seconds_max};
}

StatusOr<StepSample> OneStep(uint64_t step, Run* run) {
  StepSample sample;
  ASSIGN_OR_RETURN(const UpdateCounts before, run->daemons->Updates(run->job.name));
  const CostMeter meter(ProcessesOf(run->workers), ProcessesOf(run->daemons->processes()));
  ASSIGN_OR_RETURN(
      const std::vector<Json> replies,
      CallAll(run->workers,
              {{"do", "step"}, {"step", step}, {"compute_ms", run->options.compute_ms}}));
  const Cost cost = meter.Finish(0, replies);
  ASSIGN_OR_RETURN(const UpdateCounts after, run->daemons->Updates(run->job.name));
  sample.seconds = cost.seconds;
  sample.worker_cpu_s = cost.near_cpu_s;
  sample.daemon_cpu_s = cost.far_cpu_s;
  sample.updates = Difference(after, before);
  double pushed = 0;
  double end = 0;
  for (const Json& reply : replies) {
    sample.fetched_bytes += reply.at("fetched_bytes").get<uint64_t>();
    sample.pushed_bytes += reply.at("pushed_bytes").get<uint64_t>();
    sample.fetch_wait_s +=
        reply.at("fetch_wait_s").get<double>() / static_cast<double>(replies.size());
    pushed = std::max(pushed, reply.at("pushed").get<double>());
    end = std::max(end, reply.at("end").get<double>());
  }
  sample.exposed_update_s = end - pushed;
  ASSIGN_OR_RETURN(const Json small, run->workers[0].Call({{"do", "small"},
                                                           {"version", step + 1},
                                                           {"count", run->options.small_fetches}}));
  sample.small_fetch = {small.at("p50_us"), small.at("p99_us")};
  return sample;
}

}  // namespace

Status RunSteps(const TrainOptions& options, StopCheck stop, Daemons* daemons, Report* report) {
  Run run = {options, TrainingJob(options), daemons, {}};
  ASSIGN_OR_RETURN(run.workers, StartWorkers(options, run.job, *daemons, stop));
  for (uint64_t step = 0; step <= options.steps; ++step) {
    std::fprintf(stderr, "\rtraining: step %zu of %zu", size_t{step}, size_t{options.steps});
    ASSIGN_OR_RETURN(const StepSample sample, OneStep(step, &run));
    if (step > 0) report->steps.push_back(sample);
  }
  std::fputs("\n", stderr);
  RETURN_IF_ERROR(CallAll(run.workers, {{"do", "close"}}).status());
  run.workers.clear();
  return daemons->DeleteJob(run.job.name);
}

}  // namespace luwu::bench
