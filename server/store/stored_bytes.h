// Waiting for single transfers, for those who are not in a hurry.
#pragma once

#include "common/base/status.h"
#include "server/persist/job_storage.h"

namespace luwu {

// JobStorage::Read, waited for.
Status ReadStored(persist::JobStorage& storage, const persist::ShardEntry& entry, std::byte* data);

}  // namespace luwu
