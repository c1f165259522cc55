// Everything one job on one node needs to live in a test: clock, budget, update threads, session
// table, decider. Also small job specs and a wait for commits.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/numa.h"
#include "server/session/session_table.h"
#include "server/step/job.h"
#include "server/step/update_pool.h"
#include "server/store/memory_budget.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_reporter.h"
#include "tests/fakes/fake_worker.h"

namespace luwu::fakes {

inline TensorSpec Tensor(const std::string& name, uint64_t elements, uint64_t offset,
                         bool trainable = true, uint32_t group = 0) {
  TensorSpec tensor;
  tensor.name = name;
  tensor.shape = {elements};
  tensor.offset = offset;
  tensor.trainable = trainable;
  tensor.group = group;
  return tensor;
}

// One layer of one trainable tensor.
inline LayerSpec Layer(const std::string& name, uint64_t elements, bool trainable = true) {
  LayerSpec layer;
  layer.name = name;
  layer.elements = elements;
  layer.tensors = {Tensor(name + ".weight", elements, 0, trainable)};
  return layer;
}

// AdamW, shards of 64 elements, fp32 gradients and served copies.
inline JobSpec SmallSpec(uint32_t world_size, std::vector<LayerSpec> layers) {
  JobSpec spec;
  spec.name = "job";
  spec.world_size = world_size;
  spec.layers = std::move(layers);
  spec.optimizer.kind = OptimizerKind::kAdamW;
  spec.served_dtype = DType::kFloat32;
  spec.gradient_dtype = DType::kFloat32;
  spec.shard_elements = 64;
  spec.slots_per_worker = 4;
  spec.overflow_bytes = 1 << 20;
  return spec;
}

inline HyperParameters AdamHyper(double lr = 0.01) {
  HyperParameters hyper;
  hyper.lr = lr;
  hyper.weight_decay = 0.1;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.999;
  hyper.eps = 1e-8;
  return hyper;
}

inline std::vector<Node> NodeList(uint32_t count) {
  std::vector<Node> nodes(count);
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i].name = "n" + std::to_string(i);
    nodes[i].control_address = "127.0.0.1:" + std::to_string(7000 + i);
    nodes[i].data_address = "127.0.0.1:" + std::to_string(8000 + i);
  }
  return nodes;
}

// A commit that somebody waits for. The callback may come after this object's end.
class CommitWait {
 public:
  CommitCallback Callback() {
    return [state = state_](StatusOr<CommitResult> result) {
      MutexLock lock(state->mutex);
      LUWU_CHECK(!state->result, "a commit is answered once");
      state->result = std::move(result);
      state->answered.NotifyAll();
    };
  }
  bool answered() {
    MutexLock lock(state_->mutex);
    return state_->result.has_value();
  }
  // Up to 30 s.
  StatusOr<CommitResult> Wait() {
    const TimePoint deadline = DeadlineAfter(30000);
    MutexLock lock(state_->mutex);
    while (!state_->result) {
      if (!state_->answered.WaitUntil(state_->mutex, deadline) && !state_->result) {
        return Error(ErrorCode::kInternal, "the commit was not answered in 30 s");
      }
    }
    return *state_->result;
  }

 private:
  struct State {
    Mutex mutex;
    CondVar answered;
    std::optional<StatusOr<CommitResult>> result LUWU_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Two update threads as on a host of two NUMA nodes.
inline std::vector<UpdateSeat> SeatsOnTwoNodes() {
  const std::vector<uint32_t> allowed = AllowedCpus();
  return {{0, {allowed.front()}}, {1, {allowed.back()}}};
}

class JobWorld {
 public:
  explicit JobWorld(const JobSpec& spec, uint64_t budget_bytes = uint64_t{1} << 30,
                    std::shared_ptr<persist::JobStorage> storage = nullptr,
                    std::optional<persist::Point> restore = std::nullopt,
                    std::vector<UpdateSeat> seats = std::vector<UpdateSeat>(2))
      : budget_(budget_bytes), pool_(std::move(seats)), storage_(std::move(storage)) {
    Make(spec, restore);
  }
  ~JobWorld() {
    if (job_ == nullptr) return;
    job_->Shutdown(Error(ErrorCode::kCancelled, "the test ends"));
    job_->Drain();
  }

  static constexpr uint64_t kEpoch = 0x1234;

  const Status& status() const { return status_; }
  Job& job() { return *job_; }
  const std::shared_ptr<Job>& job_ptr() const { return job_; }
  FakeClock& clock() { return clock_; }
  MemoryBudget& budget() { return budget_; }
  SessionTable& table() { return table_; }
  Decider& decider() { return *decider_; }
  Job::Environment environment() { return {&budget_, &pool_, &table_, &clock_}; }

  // The daemon ends without a word, and another one goes on from a point of its storage. Nobody
  // else may hold the job any more.
  void Crash(const persist::Point& point) {
    const JobSpec spec = job_->spec();
    job_->Shutdown(Error(ErrorCode::kRolledBack, "rolled back"));
    job_->Drain();
    job_.reset();
    table_.Sweep();
    LUWU_CHECK(storage_->RollBack(point, kEpoch).ok(), "a point can be gone back to");
    Make(spec, point);
  }

  // Loads every master as a function of (layer, element) and publishes version 0.
  template <typename Value>
  void LoadAll(const Value& value) {
    const JobSpec& spec = job_->spec();
    for (const LocalShard& shard : job_->shard_map().shards()) {
      std::vector<float> values(shard.elements);
      for (uint64_t i = 0; i < shard.elements; ++i) {
        values[i] = value(shard.layer, shard.first_element + i);
      }
      const Status loaded = job_->Load(shard.layer, shard.shard, 0, values);
      LUWU_CHECK(loaded.ok(), "masters load");
    }
    LUWU_CHECK(job_->FinishLoad(false).ok() && spec.world_size > 0, "loading ends");
  }
  // Time in which the daemon is awake.
  void Pass(uint64_t ms) {
    while (ms > 0) {
      const uint64_t now_ms = std::min<uint64_t>(ms, 1000);
      clock_.AdvanceMs(now_ms);
      job_->Tick();
      ms -= now_ms;
    }
  }
  std::unique_ptr<FakeWorker> Join(uint32_t rank, uint64_t restart_count = 0, bool mapped = true) {
    return std::make_unique<FakeWorker>(
        job_, &table_,
        WorkerIdentity{rank, restart_count, "host" + std::to_string(rank), 100 + rank}, mapped);
  }
  // The local part of a layer's array, shard after shard.
  StatusOr<std::vector<float>> ReadLayer(uint32_t layer, Quantity quantity) {
    std::vector<float> values;
    const Status status =
        job_->Read({layer, quantity}, DeadlineAfter(30000), [&](const Job::Piece& piece) {
          values.insert(values.end(), piece.values.begin(), piece.values.end());
          return OkStatus();
        });
    if (!status.ok()) return status;
    return values;
  }

 private:
  void Make(const JobSpec& spec, std::optional<persist::Point> restore) {
    decider_ = std::make_unique<Decider>(spec, restore);
    JobOptions options;
    options.spec = spec;
    options.nodes = NodeList(1);
    options.epoch = kEpoch;
    options.storage = storage_;
    options.restore = restore;
    StatusOr<std::shared_ptr<Job>> job = Job::Create(
        std::move(options), environment(), std::make_unique<FakeReporter>(decider_.get()));
    status_ = job.status();
    if (job.ok()) job_ = *std::move(job);
  }

  FakeClock clock_;
  MemoryBudget budget_;
  SessionTable table_;
  UpdatePool pool_;
  const std::shared_ptr<persist::JobStorage> storage_;
  std::unique_ptr<Decider> decider_;
  Status status_;
  std::shared_ptr<Job> job_;
};

}  // namespace luwu::fakes
