// The gRPC server of the control plane: LuWu's services, grpc.health.v1, reflection.
//
// Owned by the daemon, which starts it last and stops it first: a daemon that can be reached is
// wholly up. Main thread, except where stated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/service/service_context.h"

namespace luwu {

struct ControlSecurity {
  TlsFiles files = {};  // empty: plain text, for everybody who reaches the port
  uint32_t refresh_s = rpc::kTlsRefreshS;
  std::string local_socket = {};  // path; empty: none. With TLS only
};

class ControlServer {
 public:
  // Listens on `address` ("host:port"; the port is taken exclusively). Health is NOT_SERVING until
  // SetServing(true). kUnavailable says why the address cannot be had, kInvalidArgument
  // which of the TLS files is of no use.
  static StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address,
                                                        const ControlSecurity& security,
                                                        const ServiceContext& services);
  virtual ~ControlServer() = default;  // Shutdown(0)

  // The state that grpc.health.v1 tells of the daemon ("") and of each service.
  virtual void SetServing(bool serving) = 0;
  // Takes no more calls, lets those in progress finish for `grace_ms`, cancels the rest, and
  // returns when no handler runs any more. Idempotent.
  virtual void Shutdown(uint64_t grace_ms) = 0;
};

// A port of the host in `address` that can be bound now: the one given or, for port 0, a free one.
// The error names the address and the reason ("in use").
StatusOr<uint16_t> ProbePort(const std::string& address);

}  // namespace luwu
