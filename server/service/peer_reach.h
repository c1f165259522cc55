// Calls every other node and connects to its data port, all at once, for the doctor. Blocks until
// all have answered or the time is over; for a work queue's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/rpc/tls.h"
#include "common/tensor/placement.h"
#include "server/service/doctor_checks.h"

namespace luwu {

// One entry for each node but `self`, in list order.
std::vector<doctor::PeerFacts> ReachPeers(const std::vector<Node>& nodes, uint32_t self,
                                          uint64_t timeout_ms, const rpc::Credentials& credentials);

}  // namespace luwu
