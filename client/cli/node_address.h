// Where luwuctl dials a node of a list. The daemon that was asked over a Unix socket is dialled
// there again: its port may ask for a certificate that the caller does not have.
#pragma once

#include <string>

#include "luwu/v1/jobs.pb.h"

namespace luwu::cli {

// Of entry `node` of the list that `endpoint` has answered.
inline std::string AddressOf(const v1::ListNodesResponse& list, int node,
                             const std::string& endpoint) {
  const bool same = static_cast<uint32_t>(node) == list.self() && endpoint.starts_with("unix:");
  return same ? endpoint : list.nodes(node).control_address();
}

}  // namespace luwu::cli
