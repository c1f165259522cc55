// Who owns a data directory. The file LOCK is held with flock for the life of the process; IDENTITY
// says which node's state this is, in which format and engine. A directory of something else is not
// touched, not even to lock it. Called when the storage is opened, by one thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "server/persist/node_storage.h"

namespace luwu::persist {

// 1: without PROMISED; still read, and made a 2 by the first start.
inline constexpr uint32_t kDirectoryFormat = 2;
inline constexpr uint32_t kOldestDirectoryFormat = 1;

struct Identity {
  std::string node_name;
  Engine engine = Engine::kExtents;  // never kAuto
  uint32_t format = kDirectoryFormat;

  bool operator==(const Identity&) const = default;
};

// Creates the directory when there is none (its parent must exist). kPermission: in use, or not
// ours to use, as ReadIdentity says.
StatusOr<UniqueFd> LockDirectory(const std::string& path);

// kNotFound: the directory is new: empty but for the lock, or what an interrupted first start left.
// kPermission for a directory that is not empty and not ours, kCorrupt, kUnsupported for a format
// that is newer than this program.
StatusOr<Identity> ReadIdentity(const std::string& path);
// Announces an identity, durably: the directory counts as new until FinishIdentity, but as ours.
Status BeginIdentity(const std::string& path, const Identity& identity);
// From now on, durably, what is in the directory is expected to be there.
Status FinishIdentity(const std::string& path);

std::string_view EngineName(Engine engine);

}  // namespace luwu::persist
