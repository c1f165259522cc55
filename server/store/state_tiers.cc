#include "server/store/state_tiers.h"

#include "common/base/bytes.h"
#include "server/store/stored_bytes.h"

namespace luwu {

StatusOr<optim::StateArrays> StateTiers::ReadPinned(uint32_t index, const StatePin& pin,
                                                    Mapping* scratch) {
  if (pin.stored == nullptr) return pin.arrays;
  ASSIGN_OR_RETURN(const persist::Generation generation, pin.stored->Wait());
  const uint64_t bytes = AlignUp(generation.bytes, persist::kIoAlignment);
  if (scratch->bytes() < bytes) {
    ASSIGN_OR_RETURN(*scratch, AllocateHuge(bytes));
  }
  if (use_->ended()) return Error(ErrorCode::kCancelled, "the job has ended");
  RETURN_IF_ERROR(ReadStored(use_->storage(), {index, generation}, scratch->data()));
  return disk_->ArraysAt(index, scratch->data());
}

}  // namespace luwu
