#include "server/service/job_tensors.h"

#include "server/optim/optimizer.h"

namespace luwu {
namespace {

// How long a thread waits for an update before it looks after other work.
constexpr uint64_t kUpdateWaitMs = 100;

}  // namespace

uint32_t MomentsOf(const JobSpec& spec) { return optim::LayoutOf(spec.optimizer).count - 1; }

Status CheckExportable(const Job& job) {
  const bool in_place = !KeepsUndoState(job.spec()) && !HoldsSums(job.spec());
  if (job.Snapshot().state != JobState::kFailed || !in_place) return OkStatus();
  return Error(ErrorCode::kJobFailed,
               "job '{}' failed in step {} when some layers were updated already, and it keeps no "
               "undo state: what it holds is of no single step",
               job.spec().name, job.current_step());
}

uint32_t JobTarget::moments() const { return MomentsOf(spec()); }

Status JobTarget::Write(const Place& place, std::span<const float> values) {
  if (place.array == 0) return job_->Load(place.layer, place.shard, place.offset, values);
  const auto quantity = static_cast<Quantity>(place.array + 1);
  return job_->LoadState({place.layer, quantity, place.shard, place.offset}, values);
}

uint32_t JobSource::moments() const { return MomentsOf(spec()); }

Status JobSource::Read(const Place& place, interchange::SourceBatch* batch) {
  using Batch = interchange::SourceBatch;
  const uint64_t shard_elements = spec().shard_elements;
  bool full = false;
  const auto take = [&](const Job::Piece& piece) -> Status {
    full = batch->values.size() + piece.values.size() > Batch::kElementsMax;
    if (full) return Error(ErrorCode::kCancelled, "the batch is full");
    const uint64_t first = piece.shard * shard_elements + piece.offset;
    batch->step = piece.version;
    batch->values.insert(batch->values.end(), piece.values.begin(), piece.values.end());
    if (!batch->runs.empty()) {
      Batch::Run& last = batch->runs.back();
      if (last.first_element + last.count == first) {
        last.count += piece.values.size();
        return OkStatus();
      }
    }
    batch->runs.push_back({first, piece.values.size()});
    return OkStatus();
  };
  const Job::ReadPlace from = {place.layer, static_cast<Quantity>(place.array + 1),
                               place.skip_elements};
  const Status status = job_->Read(from, DeadlineAfter(kUpdateWaitMs), take);
  if (full) return OkStatus();
  batch->end = status.ok();
  return status;
}

}  // namespace luwu
