#include "tests/bench/workers.h"

namespace luwu::bench {

StatusOr<std::vector<Child>> StartWorkers(const TrainOptions& options, const BenchJob& job,
                                          const Daemons& daemons, StopCheck stop) {
  std::vector<Child> workers;
  for (uint32_t rank = 0; rank < job.world_size; ++rank) {
    ASSIGN_OR_RETURN(Child worker, Child::RunWorker(stop));
    workers.push_back(std::move(worker));
    RETURN_IF_ERROR(workers.back()
                        .Call({{"do", "open"},
                               {"job", ToJson(job)},
                               {"rank", rank},
                               {"endpoints", daemons.endpoints()},
                               {"transport", options.transport},
                               {"connections", options.connections}})
                        .status());
  }
  RETURN_IF_ERROR(workers[0].Call({{"do", "finish_load"}}).status());
  RETURN_IF_ERROR(CallAll(workers, {{"do", "wait_loaded"}}).status());
  return workers;
}

}  // namespace luwu::bench
