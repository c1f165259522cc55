#include "tests/bench/optimizer/daemon_path.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "tests/bench/daemons.h"
#include "tests/bench/optimizer/case_runner.h"
#include "tests/bench/train_options.h"
#include "tests/bench/workers.h"

namespace luwu::bench {
namespace {

constexpr uint32_t kPushers = 2;
constexpr uint64_t kLayers = 12;
constexpr uint32_t kSpareSlots = 8;

BenchJob MakeJob(uint64_t params) {
  BenchJob job;
  job.name = "bench-daemon-path";
  job.world_size = kPushers + 1;
  job.layers = EqualLayers(params, kLayers);
  job.shard_elements = kBenchShardElements;
  uint64_t shards = 0;
  for (const BenchLayer& layer : job.layers) {
    shards += (layer.elements + job.shard_elements - 1) / job.shard_elements;
  }
  job.slots_per_worker = static_cast<uint32_t>(shards) + kSpareSlots;
  return job;
}

uint64_t JobBytes(const BenchJob& job) {
  const uint64_t slots = job.world_size * uint64_t{job.slots_per_worker};
  return job.elements() * (2 * 12 + 2 * 2) + slots * (job.shard_elements * 2 + 8192) +
         (uint64_t{512} << 20);
}

// Page faults of the process's update threads so far.
uint64_t UpdateThreadFaults(pid_t pid) {
  uint64_t faults = 0;
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    if (stat.find("(luwu-update-") == std::string::npos) continue;
    std::istringstream fields(stat.substr(stat.rfind(')') + 2));
    std::string skipped;
    uint64_t minor = 0, children = 0, major = 0;  // fields 10 to 12; the first here is the third
    for (int i = 3; i < 10; ++i) fields >> skipped;
    fields >> minor >> children >> major;
    faults += minor + major;
  }
  return faults;
}

// From the close of the first layer to the commit, in seconds.
StatusOr<double> OneStep(uint64_t step, std::vector<Child>* workers) {
  RETURN_IF_ERROR(CallAll(*workers, {{"do", "begin"}, {"step", step}}).status());
  RETURN_IF_ERROR(CallAll(std::span(*workers).subspan(1), {{"do", "push"}}).status());
  ASSIGN_OR_RETURN(const Json reply, (*workers)[0].Call({{"do", "absent_commit"}, {"step", step}}));
  RETURN_IF_ERROR(
      CallAll(std::span(*workers).subspan(1), {{"do", "commit"}, {"step", step}}).status());
  return reply.at("end").get<double>() - reply.at("begin").get<double>();
}

}  // namespace

Status RunDaemonPath(const OptimizerBenchOptions& options, StopCheck stop,
                     DaemonPathResult* result) {
  const BenchJob job = MakeJob(options.params);
  const uint32_t threads = options.threads.back();
  const std::vector<BenchCase> alone = {{.name = "engine alone",
                                         .optimizer = {.kind = OptimizerKind::kAdamW},
                                         .workers = kPushers,
                                         .threads = threads,
                                         .in_place = false}};
  ASSIGN_OR_RETURN(Daemons daemons, Daemons::Run({.binary = options.luwud,
                                                  .count = 1,
                                                  .memory_bytes = JobBytes(job),
                                                  .update_threads = threads,
                                                  .shm = true,
                                                  .stop = stop}));
  TrainOptions train;
  train.transport = "shm";
  ASSIGN_OR_RETURN(std::vector<Child> workers, StartWorkers(train, job, daemons, stop));
  ASSIGN_OR_RETURN(CaseMemory memory, CaseMemory::Create(alone, options.params));
  const std::vector<CaseShard>& shards = memory.Prepare(alone[0]);
  CaseRunner runner(alone[0], shards);
  const double case_params = static_cast<double>(shards.size() * kBenchShardElements);
  const pid_t daemon = daemons.processes().front().pid();
  uint64_t faults_before = 0;
  for (uint64_t step = 0; step <= options.rounds; ++step) {
    std::fprintf(stderr, "\rdaemon path: round %zu of %zu", size_t{step}, size_t{options.rounds});
    ASSIGN_OR_RETURN(const double daemon_s, OneStep(step, &workers));
    const double engine_s = runner.Engine().seconds;
    if (step == 0) faults_before = UpdateThreadFaults(daemon);
    if (step == 0) continue;
    result->daemon_ns.push_back(daemon_s / static_cast<double>(job.elements()) * 1e9);
    result->engine_ns.push_back(engine_s / case_params * 1e9);
  }
  std::fputs("\n", stderr);
  result->page_faults = UpdateThreadFaults(daemon) - faults_before;
  result->measured = true;
  RETURN_IF_ERROR(CallAll(workers, {{"do", "close"}}).status());
  workers.clear();
  return daemons.DeleteJob(job.name);
}

}  // namespace luwu::bench
