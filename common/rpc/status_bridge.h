// luwu::Status over gRPC. A failed RPC carries the canonical gRPC code, the message, and in the
// trailing metadata "luwu-error-bin" an ErrorDetail with the LuWu code and the node that detected
// the error. A status that gRPC itself made (connection refused, deadline) has no detail and maps
// to the nearest LuWu code.
//
// Used by every handler of the daemon and every caller of a stub; any thread.
#pragma once

#include <string>

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace luwu::rpc {

inline constexpr char kErrorDetailKey[] = "luwu-error-bin";
// Longer messages are cut: a peer refuses more than 8 KiB of metadata.
inline constexpr size_t kErrorMessageMax = 3000;

// For handlers: call it before the reactor finishes, with its result. OK adds nothing.
grpc::Status ToGrpc(grpc::ServerContextBase* context, const Status& status,
                    const std::string& node);

// For callers, after the RPC has finished on `context`.
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);

// The node that detected the error of a finished RPC; empty when gRPC itself made the error.
std::string NodeOfError(const grpc::ClientContext& context);

}  // namespace luwu::rpc
