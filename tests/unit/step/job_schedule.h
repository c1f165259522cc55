// Random steps of a random job, played by fake workers in a random order of arrival: repeats,
// accumulation, layers without a gradient, gradients that are not finite, norms that are clipped,
// workers that are replaced in the middle of a step. What is pushed depends on the seed alone; the
// order of arrival on the order seed, too. After steps at random, and after the last, the job must
// agree bit for bit with the brute-force model.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "tests/fakes/job_world.h"
#include "tests/fakes/memory_storage.h"
#include "tests/unit/step/job_model.h"

namespace luwu {

struct ScheduleOptions {
  uint32_t seed = 1;
  uint32_t order_seed = 1;
  uint32_t steps = 3;
  bool restarts = true;
  // Messages of a rank in any order; else by layer, as training sends them, in an order that
  // differs between ranks, or not.
  bool shuffle = true;
  bool same_order = false;
  bool one_push = false;   // one gradient for each shard, which closes it
  bool non_finite = true;  // at times, when the job can skip
  // Sends only when nobody else can.
  std::optional<uint32_t> straggler = {};
  std::function<void(uint64_t, StepDecision*)> change_decision = {};
  // The job gets this storage, and memory for a part of its state only.
  std::shared_ptr<fakes::MemoryStorage> storage = nullptr;
  // Between two steps at random the daemon crashes and goes back to the newest point.
  bool crashes = false;
  bool two_numa_nodes = false;
};

void AddLayers(std::mt19937& random, uint32_t count, JobSpec* spec);
// Least memory, and a random share of what the rest of the state would take.
uint64_t TightMemory(const JobSpec& spec, std::mt19937& random);

// A job of a few tiny layers: gaps, frozen tensors, a frozen layer, groups, any dtype, update mode
// and clip scope (`mode`: this one), AdamW or SGD with fp32 state and masters in any format.
JobSpec RandomSpec(std::mt19937& random, std::optional<UpdateMode> mode = {});
// Any optimizer and state precision, too.
void RandomizeState(std::mt19937& random, JobSpec* spec);
// At times: shards and a tensor of several blocks of the 8-bit formats.
void MakeShardsLong(std::mt19937& random, JobSpec* spec);

class JobSchedule {
 public:
  JobSchedule(const JobSpec& spec, const ScheduleOptions& options);

  // Plays all steps; fails the test at the first difference.
  void Run();
  // All arrays of all layers at the end, one after the other.
  std::vector<float> State();
  fakes::JobWorld& world() { return world_; }
  uint64_t skipped() const { return skipped_; }
  uint64_t crashes() const { return crashes_; }

 private:
  // What was known before a step.
  struct Past {
    JobModel model;
    std::mt19937 plan;
    float loss_scale = 1;
    uint64_t skipped = 0;
  };
  struct Worker {
    std::unique_ptr<fakes::FakeWorker> fake;
    uint64_t restarts = 0;
    std::vector<fakes::Push> all;    // the step's messages
    std::vector<fakes::Push> queue;  // of these, what is not sent yet; from the back
  };

  void JoinAll();
  uint64_t Crash();
  void PlanStep(uint64_t step);
  void PlanLayer(uint64_t step, uint32_t layer, uint32_t rank);
  void SpoilOne();
  void PlayStep(uint64_t step);
  bool SendSomething();
  void RestartAtTheEnd(uint64_t step);
  void Commit(uint64_t step);
  void EndModelStep(uint64_t step);
  void Restart(uint64_t step, uint32_t rank);
  void Begin(uint64_t step, Worker& worker);
  bool SendOne(uint32_t rank);
  void Refill(Worker& worker);
  void AwaitVersion(uint64_t version);
  void Compare(uint64_t version);
  void CompareArrays(uint32_t layer);
  void CompareServed(uint32_t layer, uint64_t version);
  std::vector<std::byte> Served(uint32_t layer, const LocalShard& shard);
  uint32_t Plan(uint32_t below) { return static_cast<uint32_t>(plan_() % below); }
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  const ScheduleOptions options_;
  std::mt19937 plan_;
  std::mt19937 random_;
  fakes::JobWorld world_;
  const JobSpec spec_;
  JobModel model_;
  std::vector<HyperParameters> groups_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<std::vector<float>>> gradients_;  // of the step
  std::vector<uint32_t> gradient_layers_;                       // of these
  bool spoiled_ = false;                                        // the step is not finite
  float loss_scale_ = 1;
  uint64_t skipped_ = 0;
  uint64_t idle_turns_ = 0;
  uint64_t crashes_ = 0;
  std::map<uint64_t, Past> past_;  // by step
};

}  // namespace luwu
