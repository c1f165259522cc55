// Whether what a slot's trailer says can be true: of this session and job, and of a shard that this
// node owns, with the bytes that it has. Everything in a trailer is hostile. Pure functions.
#pragma once

#include "common/base/status.h"
#include "common/wire/slot_trailer.h"
#include "server/session/session.h"
#include "server/step/job_parts.h"

namespace luwu {

// kStaleEpoch, kPermission.
Status CheckSlotOrigin(const JobPlan& plan, const Session& session, const SlotTrailer& trailer);
// kInvalidArgument, saying what is wrong.
Status CheckSlotTarget(const JobPlan& plan, const SlotTrailer& trailer);

}  // namespace luwu
