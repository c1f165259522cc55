// A job in this process whose state is larger than its memory: the daemon's pipeline and storage,
// with synthetic workers that push by memory. Used by benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/persist/node_storage.h"
#include "tests/fakes/job_world.h"

namespace luwu::bench {

struct SpillJobOptions {
  std::string path;  // of the data directory
  persist::Engine engine = persist::Engine::kAuto;
  uint64_t params = 0;
  uint64_t layers = 32;
  uint32_t workers = 1;
  double oversubscription = 4;  // what the model would take in memory / what it gets
  uint32_t durable_every = 0;
};

struct SpillStep {
  double seconds = 0;
  double exposed_seconds = 0;  // from the last push to the commit
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double busy_seconds = 0;  // of the tier: with a transfer under way
};

class SpillJob {
 public:
  static StatusOr<std::unique_ptr<SpillJob>> Create(const SpillJobOptions& options);
  ~SpillJob();

  // One step of all workers, each of them at the next layer after an equal part of `compute_s`.
  StatusOr<SpillStep> Step(double compute_s);
  TierSnapshot tiers() { return world_->job().Snapshot().tiers; }
  JobFootprint footprint() { return world_->job().Snapshot().footprint; }
  persist::StorageSnapshot storage() const { return node_->Snapshot(); }
  uint64_t memory_bytes() const { return spec_.memory_bytes; }

  // Keeps the newest point under a name; seconds.
  StatusOr<double> CreateCheckpoint(const std::string& name);
  Status DeleteCheckpoint(const std::string& name) { return storage_->DeleteCheckpoint(name); }

  struct Recovery {
    double open_seconds = 0;     // of the data directory
    double restore_seconds = 0;  // of the job, to READY
    uint64_t read_bytes = 0;
  };
  // Ends the job as a crash does and goes on from its newest point.
  StatusOr<Recovery> CrashAndRecover();

 private:
  explicit SpillJob(const SpillJobOptions& options) : options_(options) {}
  Status Start();
  Status OpenNode();
  Status Join();
  void Push(uint32_t worker, double compute_s);

  const SpillJobOptions options_;
  JobSpec spec_;
  std::vector<float> gradient_;  // of any layer
  std::unique_ptr<persist::NodeStorage> node_;
  std::shared_ptr<persist::JobStorage> storage_;
  std::unique_ptr<fakes::JobWorld> world_;
  std::vector<std::unique_ptr<fakes::FakeWorker>> workers_;
  uint64_t step_ = 0;
};

}  // namespace luwu::bench
