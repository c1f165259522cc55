// A named checkpoint of a job as what an export reads (server/interchange): this node's shards, one
// stored generation at a time and the next one read ahead, with the values that a read of the live
// job would have given at that step. Needs the storage only: the job may be training, be at another
// step, or be recovering. As long as it exists the checkpoint cannot be deleted.
//
// One thread at a time; transfers end on the storage's threads, also after it is gone. Memory: two
// of the largest generations. Errors: kNotFound; kCorrupt, which names the shard; kDeadline while
// the device is busy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/shard_map.h"
#include "server/interchange/export_run.h"
#include "server/persist/job_storage.h"
#include "server/step/job.h"
#include "server/step/shard_segments.h"

namespace luwu {

struct CheckpointPlace {
  JobSpec spec;
  std::shared_ptr<persist::JobStorage> storage;
  std::vector<Node> nodes;
  uint32_t self = 0;
  std::string name;  // of the checkpoint
};

class CheckpointSource final : public interchange::TensorSource {
 public:
  // Reads nothing yet, and does not wait.
  static StatusOr<std::unique_ptr<CheckpointSource>> Open(CheckpointPlace place);

  const JobSpec& spec() const override { return spec_; }
  const std::vector<LocalShard>& shards() const override { return map_.shards(); }
  uint32_t moments() const override;
  // In ascending order of layers and elements; going back costs a read, and reading ahead is for
  // nothing then.
  Status Read(const Place& place, interchange::SourceBatch* batch) override;

  const persist::Point& point() const { return held_.checkpoint.point; }
  // As Job::WhereItStands.
  StartPoint WhereItStands() const;

 private:
  struct Buffer;

  CheckpointSource(CheckpointPlace place, persist::HeldCheckpoint held);
  Status CheckEntries() const;
  // The bytes of a shard, when they are there.
  StatusOr<std::byte*> Await(uint32_t index);
  // Starts to read a shard, unless its buffer is busy or has it.
  Status Begin(uint32_t index);

  const JobSpec spec_;
  const std::string node_;
  const ShardMap map_;
  const std::shared_ptr<persist::JobStorage> storage_;
  const persist::HeldCheckpoint held_;
  uint64_t buffer_bytes_ = 0;
  std::array<std::shared_ptr<Buffer>, 2> buffers_;  // of even and odd shards
  std::vector<Segment> segments_;                   // of shard segments_of_
  uint32_t segments_of_;
};

}  // namespace luwu
