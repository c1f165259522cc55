#include "tests/bench/worker.h"

#include <time.h>

#include <thread>

#include "common/base/memory.h"
#include "tests/bench/command_loop.h"
#include "tests/bench/layer_table.h"
#include "tests/bench/samples.h"
#include "tests/bench/worker_session.h"

namespace luwu::bench {
namespace {

Json IntervalJson(double begin) { return {{"begin", begin}, {"end", MonotonicSeconds()}}; }

// The accelerator computes, the CPU waits.
void Compute(double compute_ms) {
  if (compute_ms <= 0) return;
  const auto ns = static_cast<int64_t>(compute_ms * 1e6);
  timespec left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0) {
  }
}

class Worker {
 public:
  std::map<std::string, Handler> Handlers() {
    return {
        {"open", [this](const Json& c) { return Open(c); }},
        {"finish_load", [this](const Json&) { return Done(session_.FinishLoad()); }},
        {"wait_loaded", [this](const Json&) { return Done(session_.WaitLoaded()); }},
        {"begin", [this](const Json& c) { return Done(session_.Begin(c.at("step"))); }},
        {"commit", [this](const Json& c) { return Commit(c.at("step")); }},
        {"absent", [this](const Json&) { return Absent(); }},
        {"absent_commit", [this](const Json& c) { return AbsentCommit(c.at("step")); }},
        {"push", [this](const Json&) { return Push(); }},
        {"fetch", [this](const Json& c) { return Fetch(c.at("version")); }},
        {"both", [this](const Json& c) { return Both(c.at("version")); }},
        {"view", [this](const Json& c) { return View(c.at("version")); }},
        {"small", [this](const Json& c) { return Small(c.at("version"), c.at("count")); }},
        {"step", [this](const Json& c) { return Step(c.at("step"), c.at("compute_ms")); }},
        {"close", [this](const Json&) { return Close(); }},
    };
  }

 private:
  static StatusOr<Json> Done(const Status& status) {
    RETURN_IF_ERROR(status);
    return Json::object();
  }

  StatusOr<Json> Open(const Json& command) {
    job_ = JobFromJson(command.at("job"));
    const uint64_t bytes = job_.largest_layer() * job_.wire_bytes();
    ASSIGN_OR_RETURN(gradient_, AllocateHuge(bytes));
    ASSIGN_OR_RETURN(weights_[0], AllocateHuge(bytes));
    ASSIGN_OR_RETURN(weights_[1], AllocateHuge(bytes));
    FillGradient();
    return Done(session_.Open(job_, {.rank = command.at("rank"),
                                     .endpoints = command.at("endpoints"),
                                     .transport = command.at("transport"),
                                     .connections = command.at("connections")}));
  }

  // Small values of both signs.
  void FillGradient() {
    const DType dtype = DTypeOf(job_.wire_dtype);
    for (uint64_t i = 0; i < job_.largest_layer(); ++i) {
      const float value = (static_cast<float>(i * 2654435761u % 2001) - 1000) * 1e-6f;
      ConvertElements(DType::kFloat32, reinterpret_cast<const std::byte*>(&value), dtype,
                      gradient_.data() + i * job_.wire_bytes(), 1);
    }
  }

  StatusOr<Json> Commit(uint64_t step) {
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(session_.Commit(step));
    return IntervalJson(begin);
  }

  StatusOr<Json> Absent() {
    for (uint32_t layer = 0; layer < job_.layers.size(); ++layer) {
      RETURN_IF_ERROR(session_.CloseAbsent(layer));
    }
    return Json::object();
  }

  // The interval begins before the first layer is closed.
  StatusOr<Json> AbsentCommit(uint64_t step) {
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(Absent().status());
    RETURN_IF_ERROR(session_.Commit(step));
    return IntervalJson(begin);
  }

  Status PushAll() {
    std::vector<luwu_op> ops(job_.layers.size());
    for (uint32_t layer = 0; layer < ops.size(); ++layer) {
      RETURN_IF_ERROR(session_.StartPush(layer, gradient_, &ops[layer]));
    }
    for (const luwu_op op : ops) RETURN_IF_ERROR(session_.Wait(op));
    return OkStatus();
  }
  // Two fetches in flight, as a prefetching trainer has.
  Status FetchAll(uint64_t version) {
    const uint32_t layers = static_cast<uint32_t>(job_.layers.size());
    luwu_op ops[2] = {};
    RETURN_IF_ERROR(session_.StartFetch(0, version, weights_[0], &ops[0]));
    for (uint32_t layer = 0; layer < layers; ++layer) {
      if (layer + 1 < layers) {
        const uint32_t next = (layer + 1) % 2;
        RETURN_IF_ERROR(session_.StartFetch(layer + 1, version, weights_[next], &ops[next]));
      }
      RETURN_IF_ERROR(session_.Wait(ops[layer % 2]));
    }
    return OkStatus();
  }

  StatusOr<Json> Push() {
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(PushAll());
    return IntervalJson(begin);
  }
  StatusOr<Json> Fetch(uint64_t version) {
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(FetchAll(version));
    return IntervalJson(begin);
  }
  StatusOr<Json> Both(uint64_t version) {
    const double begin = MonotonicSeconds();
    Status fetched;
    std::thread fetcher([&] { fetched = FetchAll(version); });
    const Status pushed = PushAll();
    fetcher.join();
    RETURN_IF_ERROR(pushed);
    RETURN_IF_ERROR(fetched);
    return IntervalJson(begin);
  }

  // A view that copied would give fresh memory; the same version must lie at the same addresses.
  StatusOr<Json> View(uint64_t version) {
    std::vector<const void*> first;
    RETURN_IF_ERROR(ViewAll(version, &first));
    std::vector<const void*> second;
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(ViewAll(version, &second));
    Json reply = IntervalJson(begin);
    reply["same_addresses"] = first == second;
    return reply;
  }
  Status ViewAll(uint64_t version, std::vector<const void*>* addresses) {
    for (uint32_t layer = 0; layer < job_.layers.size(); ++layer) {
      RETURN_IF_ERROR(session_.View(layer, version, addresses));
    }
    return OkStatus();
  }

  StatusOr<Json> Small(uint64_t version, uint64_t count) {
    const uint64_t elements =
        std::min<uint64_t>(4096 / job_.wire_bytes(), job_.layers.back().elements);
    const uint32_t layer = static_cast<uint32_t>(job_.layers.size() - 1);
    std::vector<double> latencies_us;
    for (uint64_t i = 0; i < count; ++i) {
      const double begin = MonotonicSeconds();
      RETURN_IF_ERROR(session_.FetchStart(layer, version, elements, weights_[0]));
      latencies_us.push_back(1e6 * (MonotonicSeconds() - begin));
    }
    return Json{{"p50_us", Median(latencies_us)}, {"p99_us", Quantile(latencies_us, 0.99)}};
  }

  // Forward and backward of a model with the fetches, pushes and overlap of a real trainer: each
  // layer fetched before its forward and again before its backward, the next one ahead of time.
  StatusOr<Json> Step(uint64_t step, double compute_ms) {
    const uint32_t layers = static_cast<uint32_t>(job_.layers.size());
    const auto layer_at = [layers](uint32_t i) { return i < layers ? i : 2 * layers - 1 - i; };
    ASSIGN_OR_RETURN(const TransferCounts before, session_.Counts());
    std::vector<luwu_op> pushes(layers);
    luwu_op fetches[2] = {};
    double waited_s = 0;
    const double begin = MonotonicSeconds();
    RETURN_IF_ERROR(session_.Begin(step));
    RETURN_IF_ERROR(session_.StartFetch(0, step, weights_[0], &fetches[0]));
    for (uint32_t i = 0; i < 2 * layers; ++i) {
      const double asked = MonotonicSeconds();
      RETURN_IF_ERROR(session_.Wait(fetches[i % 2]));
      waited_s += MonotonicSeconds() - asked;
      if (i + 1 < 2 * layers) {
        RETURN_IF_ERROR(session_.StartFetch(layer_at(i + 1), step, weights_[(i + 1) % 2],
                                            &fetches[(i + 1) % 2]));
      }
      const bool backward = i >= layers;
      Compute(backward ? 2 * compute_ms : compute_ms);
      if (backward) {
        RETURN_IF_ERROR(session_.StartPush(layer_at(i), gradient_, &pushes[layer_at(i)]));
      }
    }
    const double computed = MonotonicSeconds();
    for (const luwu_op op : pushes) RETURN_IF_ERROR(session_.Wait(op));
    const double pushed = MonotonicSeconds();
    RETURN_IF_ERROR(session_.Commit(step));
    Json reply = IntervalJson(begin);
    ASSIGN_OR_RETURN(const TransferCounts after, session_.Counts());
    reply["computed"] = computed;
    reply["pushed"] = pushed;
    reply["fetch_wait_s"] = waited_s;
    reply["fetched_bytes"] = after.fetched_bytes - before.fetched_bytes;
    reply["pushed_bytes"] = after.pushed_bytes - before.pushed_bytes;
    return reply;
  }

  StatusOr<Json> Close() {
    RETURN_IF_ERROR(session_.Close());
    gradient_ = Mapping();
    weights_[0] = Mapping();
    weights_[1] = Mapping();
    return Json::object();
  }

  BenchJob job_;
  WorkerSession session_;
  Mapping gradient_;
  Mapping weights_[2];
};

}  // namespace

void RunWorker(UniqueFd link) {
  Worker worker;
  RunCommands(Link(std::move(link)), worker.Handlers());
}

}  // namespace luwu::bench
