// Failed calls in sentences that say which daemon, at which address, and what to do. gRPC's own
// texts ("Deadline Exceeded", "failed to connect to all addresses; last error: ...") name neither.
// Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace luwu::cli {

struct Callee {
  std::string name;  // of the node; empty when it is not known
  std::string address;
  uint64_t timeout_ms = 0;  // that it was given
};

// The error with its code. What the daemon itself has said stays as it is, behind the node's name.
Status CallError(const Status& error, const Callee& callee);

// The cause alone, for a table that names the node in another column.
std::string Reason(const Status& error);

}  // namespace luwu::cli
