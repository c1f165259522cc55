// The hidden folder of an export in progress: its name, and the lock that says whether anybody is
// still at it. The lock is flock on a file in the folder, so that it goes with the process that
// held it, and that it counts for daemons of other hosts where the file system can do that; one
// that knows no locks takes every draft for left.
//
// Stateless; any thread; every call may wait for the device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::interchange {

// A draft's name has a random number in it, which is the export's everywhere: "luwu.export" of the
// files' metadata is its digits.
std::string NewDraftName();
bool IsDraftName(std::string_view name);
std::string ExportIdOf(std::string_view draft);   // `draft` is a draft's name
uint64_t ExportNumberOf(std::string_view draft);  // ... and so it is here

// The path of the hidden folder; kInvalidArgument when `draft` is no draft's name.
StatusOr<std::string> DraftPath(const std::string& folder, const std::string& draft);

// Makes the folder and locks it. The lock lasts until it is closed.
StatusOr<UniqueFd> MakeDraft(const std::string& path);
// False when nobody has locked it, or it is not there.
StatusOr<bool> IsDraftInUse(const std::string& path);
// Removes the lock's file and the folder, which has nothing else in it.
Status RemoveEmptyDraft(const std::string& path);

}  // namespace luwu::interchange
