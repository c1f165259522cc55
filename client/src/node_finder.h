// Finding the daemons of a cluster from any of them, before there is a session: for opening one and
// for deleting a job. On the caller's thread.
#pragma once

#include <string>
#include <vector>

#include "client/src/session_rpc.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/tls_files.h"
#include "common/rpc/tls.h"
#include "common/tensor/placement.h"

namespace luwu::client {

// The node list of the first of `endpoints` that answers; they are asked again and again until
// `patience_end`. kInvalidArgument without endpoints, for one that can be none and for a list that
// cannot be; kNodeLost when none answers, with the reason of each.
StatusOr<NodeList> FindNodes(const std::vector<std::string>& endpoints, TimePoint patience_end,
                             const rpc::Credentials& credentials);

// Of the files, for the calls above. Handshakes that fail go to the library's log from then on.
StatusOr<rpc::Credentials> CredentialsFor(const TlsFiles& files);

// "node n1 (127.0.0.1:7001)"
std::string NameOf(const Node& node);

// Lets a little time pass while peers come up or agree, at most until `deadline`.
void PauseBeforeRetry(TimePoint deadline);

}  // namespace luwu::client
