#include "tests/bench/transfer.h"

#include <cstdio>

#include "tests/bench/workers.h"

namespace luwu::bench {
namespace {

class TransferBench {
 public:
  TransferBench(const TrainOptions& options, StopCheck stop, Daemons* daemons)
      : options_(options), stop_(stop), daemons_(daemons), job_(TransferJob(options)) {}

  Status Start() {
    ASSIGN_OR_RETURN(pairs_, YardstickPairs::Start(options_.workers, stop_));
    ASSIGN_OR_RETURN(workers_, StartWorkers(options_, job_, *daemons_, stop_));
    return OkStatus();
  }

  // Three steps of the job: a push that stays in the slots, a push with its update, and a push
  // beside a fetch. Each yardstick runs next to what it is compared with.
  StatusOr<TransferRound> Round(bool view) {
    TransferRound round;
    ASSIGN_OR_RETURN(round.memcpy, pairs_->Memcpy(worker_bytes()));
    ASSIGN_OR_RETURN(round.ring_parked, Ring(RingUse::kNothing));
    ASSIGN_OR_RETURN(round.push, Push());
    ASSIGN_OR_RETURN(round.ring, Ring(RingUse::kRead));
    ASSIGN_OR_RETURN(round.push_and_update, PushAndUpdate());
    ASSIGN_OR_RETURN(round.ring_update, Ring(RingUse::kUpdate));
    ASSIGN_OR_RETURN(round.socket_one_way, pairs_->SocketOneWay(worker_bytes()));
    ASSIGN_OR_RETURN(round.fetch, Measure(Versioned("fetch")));
    ASSIGN_OR_RETURN(round.socket_both_ways, pairs_->SocketBothWays(worker_bytes()));
    ASSIGN_OR_RETURN(round.both_ways, BothWays());
    if (view) RETURN_IF_ERROR(View(&round));
    ASSIGN_OR_RETURN(round.echo, pairs_->Echo(options_.small_fetches));
    ASSIGN_OR_RETURN(round.small_fetch, SmallFetch());
    return round;
  }

  Status Finish() {
    RETURN_IF_ERROR(CallAll(workers_, {{"do", "close"}}).status());
    workers_.clear();
    return daemons_->DeleteJob(job_.name);
  }

  uint64_t layers() const { return job_.layers.size(); }

 private:
  uint64_t worker_bytes() const {
    const uint64_t small = job_.layers.back().elements;
    return (job_.elements() - small) * job_.wire_bytes();
  }
  std::span<Child> measured() { return std::span(workers_).subspan(1); }
  StatusOr<Cost> Ring(RingUse use) {
    return pairs_->Ring(worker_bytes(), use, DTypeOf(options_.wire_dtype));
  }
  Json Versioned(const char* command) const { return {{"do", command}, {"version", step_}}; }

  StatusOr<Cost> Measure(const Json& command) {
    const CostMeter meter(ProcessesOf(measured()), ProcessesOf(daemons_->processes()));
    ASSIGN_OR_RETURN(const std::vector<Json> replies, CallAll(measured(), command));
    return meter.Finish(worker_bytes() * measured().size(), replies);
  }

  Status Begin() { return CallAll(workers_, {{"do", "begin"}, {"step", step_}}).status(); }
  Status HoldBackNoMore() { return workers_[0].Call({{"do", "absent"}}).status(); }
  Status Commit() {
    RETURN_IF_ERROR(CallAll(workers_, {{"do", "commit"}, {"step", step_}}).status());
    ++step_;
    return OkStatus();
  }

  StatusOr<Cost> Push() {
    RETURN_IF_ERROR(Begin());
    ASSIGN_OR_RETURN(const Cost cost, Measure({{"do", "push"}}));
    RETURN_IF_ERROR(HoldBackNoMore());
    RETURN_IF_ERROR(Commit());
    return cost;
  }

  StatusOr<Cost> PushAndUpdate() {
    RETURN_IF_ERROR(Begin());
    RETURN_IF_ERROR(HoldBackNoMore());
    const CostMeter meter(ProcessesOf(measured()), ProcessesOf(daemons_->processes()));
    ASSIGN_OR_RETURN(std::vector<Json> replies, CallAll(measured(), {{"do", "push"}}));
    ASSIGN_OR_RETURN(const std::vector<Json> commits,
                     CallAll(workers_, {{"do", "commit"}, {"step", step_}}));
    ++step_;
    replies.insert(replies.end(), commits.begin(), commits.end());
    return meter.Finish(worker_bytes() * measured().size(), replies);
  }

  StatusOr<Cost> BothWays() {
    RETURN_IF_ERROR(Begin());
    ASSIGN_OR_RETURN(Cost cost, Measure(Versioned("both")));
    cost.directions = 2;
    RETURN_IF_ERROR(HoldBackNoMore());
    RETURN_IF_ERROR(Commit());
    return cost;
  }

  Status View(TransferRound* round) {
    const CostMeter meter(ProcessesOf(measured()), ProcessesOf(daemons_->processes()));
    ASSIGN_OR_RETURN(const std::vector<Json> replies, CallAll(measured(), Versioned("view")));
    round->view = meter.Finish(worker_bytes() * measured().size(), replies);
    round->view_same_addresses = true;
    for (const Json& reply : replies) {
      round->view_same_addresses &= reply.at("same_addresses").get<bool>();
    }
    return OkStatus();
  }

  StatusOr<Latency> SmallFetch() {
    Json command = Versioned("small");
    command["count"] = options_.small_fetches;
    ASSIGN_OR_RETURN(const Json reply, measured()[0].Call(command));
    return Latency{reply.at("p50_us"), reply.at("p99_us")};
  }

  const TrainOptions& options_;
  const StopCheck stop_;
  Daemons* const daemons_;
  const BenchJob job_;
  std::unique_ptr<YardstickPairs> pairs_;
  std::vector<Child> workers_;  // rank 0 holds back, the others are measured
  uint64_t step_ = 0;
};

}  // namespace

Status RunTransfers(const TrainOptions& options, StopCheck stop, Daemons* daemons, Report* report) {
  TransferBench bench(options, stop, daemons);
  RETURN_IF_ERROR(bench.Start());
  report->has_view = options.transport == "shm";
  report->transfer_layers = bench.layers();
  for (uint64_t i = 0; i <= options.rounds; ++i) {
    std::fprintf(stderr, "\rtransfers: round %zu of %zu", size_t{i}, size_t{options.rounds});
    ASSIGN_OR_RETURN(const TransferRound round, bench.Round(report->has_view));
    if (i > 0) report->rounds.push_back(round);
  }
  std::fputs("\n", stderr);
  return bench.Finish();
}

}  // namespace luwu::bench
