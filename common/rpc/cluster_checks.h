// What only shows when the answers of all daemons of a cluster are put side by side: no daemon
// knows by itself that another one has lost its part of a job. Used wherever status of a whole
// cluster is shown (luwuctl, luwu_status_json()).
#pragma once

#include <vector>

#include "common/rpc/status_json.h"

namespace luwu::rpc {

// Adds checks to the statuses of the nodes, and raises their severity accordingly:
//   JOB_PART_LOST (ERR)  nodes go on with a job that another node, which answers and serves shards,
//                        does not have: it was restarted, and the job was not kept there. Said by
//                        the first node that has the job.
void AddClusterChecks(std::vector<NodeStatus>* nodes);

}  // namespace luwu::rpc
