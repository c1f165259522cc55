// Random steps of a random job, played by fake workers in a random order of arrival: repeats,
// accumulation, layers without a gradient, workers that are replaced in the middle of a step. After
// each step the job must agree bit for bit with the brute-force model.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "tests/fakes/job_world.h"
#include "tests/unit/step/job_model.h"

namespace luwu {

struct ScheduleOptions {
  uint32_t seed = 1;
  uint32_t steps = 3;
  bool restarts = true;
  // Messages of a rank in any order; else by layer, as training sends them, in an order that
  // differs between ranks.
  bool shuffle = true;
  bool one_push = false;  // one gradient for each shard, which closes it
};

// A job of a few tiny layers: gaps, frozen tensors, a frozen layer, groups, any optimizer and
// dtype.
JobSpec RandomSpec(std::mt19937& random);

class JobSchedule {
 public:
  JobSchedule(const JobSpec& spec, const ScheduleOptions& options);

  // Plays all steps; fails the test at the first difference.
  void Run();

 private:
  struct Worker {
    std::unique_ptr<fakes::FakeWorker> fake;
    uint64_t restarts = 0;
    std::vector<fakes::Push> all;    // the step's messages
    std::vector<fakes::Push> queue;  // of these, what is not sent yet; from the back
  };

  void PlanStep(uint64_t step);
  void PlanLayer(uint64_t step, uint32_t layer, uint32_t rank);
  void PlayStep(uint64_t step);
  void Restart(uint64_t step, uint32_t rank);
  bool SendOne(uint32_t rank);
  void Refill(Worker& worker);
  void Compare(uint64_t version);
  void CompareArrays(uint32_t layer);
  void CompareServed(uint32_t layer, uint64_t version);
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  const ScheduleOptions options_;
  std::mt19937 random_;
  fakes::JobWorld world_;
  const JobSpec& spec_;
  JobModel model_;
  std::vector<HyperParameters> groups_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<std::vector<float>>> gradients_;  // of the step
};

}  // namespace luwu
