// A job on this node as what an import fills and an export reads (server/interchange).
#pragma once

#include <memory>
#include <utility>

#include "server/interchange/export_run.h"
#include "server/interchange/import_run.h"
#include "server/interchange/training_state.h"
#include "server/step/job.h"

namespace luwu {

class JobTarget final : public interchange::TensorTarget {
 public:
  explicit JobTarget(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  const JobSpec& spec() const override { return job_->spec(); }
  const std::vector<LocalShard>& shards() const override { return job_->shard_map().shards(); }
  uint32_t moments() const override;
  Status Write(const Place& place, std::span<const float> values) override;

 private:
  const std::shared_ptr<Job> job_;
};

class JobSource final : public interchange::TensorSource {
 public:
  explicit JobSource(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  const JobSpec& spec() const override { return job_->spec(); }
  const std::vector<LocalShard>& shards() const override { return job_->shard_map().shards(); }
  uint32_t moments() const override;
  Status Read(const Place& place, interchange::SourceBatch* batch) override;

 private:
  const std::shared_ptr<Job> job_;
};

// State arrays of a trainable layer besides the master.
uint32_t MomentsOf(const JobSpec& spec);

// kJobFailed when what the job has is no state of any step.
Status CheckExportable(const Job& job);

}  // namespace luwu
