// Channels and servers of the control plane with one set of limits: keepalive, message sizes,
// quick reconnection, deadlines. Without credentials they speak plain text: tls.h has some.
//
// Called by the client's session, luwuctl, the daemon's peer reporter and its server set-up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>

#include "common/base/clock.h"
#include "common/rpc/tls.h"

namespace luwu::rpc {

// A job spec of a million tensors fits; every other message is far below this.
inline constexpr int kMessageBytesMax = 64 << 20;
// Largest `values` field of Load and Read: bytes, a multiple of 4.
inline constexpr uint64_t kPieceBytesMax = 1 << 20;

inline constexpr int kKeepaliveIntervalMs = 30'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;

// A channel of its own connection (not shared with other channels of the process) to "host:port"
// or "unix:/path". Lazily connected; retries a refused connection every 0.1 to 1 s. Never goes
// through an HTTP proxy.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials = nullptr);

// The same limits on the server's side. The port is taken exclusively (no SO_REUSEPORT).
void ConfigureServer(grpc::ServerBuilder* builder);

// Ends the call at `deadline`, even when the peer is unreachable.
void SetDeadline(grpc::ClientContext* context, TimePoint deadline);
inline void SetTimeout(grpc::ClientContext* context, uint64_t timeout_ms) {
  SetDeadline(context, DeadlineAfter(timeout_ms));
}

}  // namespace luwu::rpc
