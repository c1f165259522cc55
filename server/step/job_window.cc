// Served copies that come and go in a window of memory (common/wire/window.h): what workers want,
// and where on their boards it says that copies are.
#include "common/base/log.h"
#include "common/wire/window.h"
#include "server/step/job_impl.h"

namespace luwu {

void JobImpl::OnWant(Session& session, uint32_t immediate) {
  const CopyId copy = {WantedShard(immediate), WantedParity(immediate)};
  JobEffects effects;
  if (!plan_->map.has_window() || copy.index >= plan_->map.shard_count()) {
    MutexLock lock(mutex_);
    EndWithFault(
        session,
        Error(ErrorCode::kInvalidArgument, "a wish {:#010x} for shard {} of {}; the job {} window",
              immediate, copy.index, plan_->map.shard_count(),
              plan_->map.has_window() ? "has a" : "needs no"),
        &effects);
  } else if (weights_->Want(copy)) {
    MutexLock lock(mutex_);
    NoteMoved(&effects);
  }
  effects.Run();
}

void JobImpl::OnCopiesMoved() {
  JobEffects effects;
  {
    MutexLock lock(mutex_);
    NoteMoved(&effects);
  }
  effects.Run();
}

// Boards follow what has moved. A board that lags behind costs its reader a look at a header.
void JobImpl::NoteMoved(JobEffects* effects) {
  const std::vector<CopyId> moved = weights_->TakeMoved();
  if (moved.empty()) return;
  for (const CopyId copy : moved) places_[2 * copy.index + copy.parity] = weights_->Place(copy);
  for (const Rank& rank : ranks_) {
    if (rank.session == nullptr || !rank.session->Check().ok()) continue;
    for (const CopyId copy : moved) {
      rank.session->board().SetPlace(copy.index, copy.parity,
                                     places_[2 * copy.index + copy.parity]);
    }
    effects->FlushBoard(rank.session);
  }
}

}  // namespace luwu
