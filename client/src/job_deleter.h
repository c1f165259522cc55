// Deletes a job on every node of a cluster; needs no session. On the caller's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/tls_files.h"

namespace luwu::client {

struct DeleteOptions {
  std::vector<std::string> endpoints;  // of any daemons; the first that answers is asked
  std::string job;
  bool force = false;  // also while workers have open sessions; past nodes that fail
  uint32_t timeout_ms = 30'000;
  TlsFiles tls = {};  // empty: plain text
};

// OK when no node has the job any more and at least one had it, so that a deletion that stopped
// half-way can be repeated. The lead goes first: what it refuses (open sessions) is left whole.
// kNotFound when no node has the job; any other error names the nodes that kept it.
Status DeleteJob(const DeleteOptions& options);

}  // namespace luwu::client
