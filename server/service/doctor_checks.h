// Judges what a running daemon knows of its data directory, and what it found of the other nodes.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/doctor/finding.h"

namespace luwu::doctor {

struct StorageFacts {
  std::string path;
  bool direct = false;  // past the page cache, as probed when it was opened
  uint64_t budget_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;  // of the file system
  std::string full;         // not empty: writes wait, and for what
  std::string failed;       // not empty: nothing is written any more
  std::string damaged;      // not empty: the newest damage found
};

Findings CheckStorage(const StorageFacts& facts);

// Another node of the list, as found from here.
struct PeerFacts {
  std::string name;
  std::string control_address;
  StatusOr<std::string> answered;  // the name of the daemon that answered a call there
  std::string data_address;        // empty: it has none, as it serves no shards
  Status data = OkStatus();        // whether a connection could be made
};

Findings CheckPeers(const std::vector<PeerFacts>& peers);

}  // namespace luwu::doctor
