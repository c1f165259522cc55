// Mutual TLS of the control plane: gRPC credentials over three PEM files, which are looked at again
// every now and then, so that certificates are renewed without a restart. Connections that are open
// stay as they are; new ones use what was read last.
//
// Any thread. What can be wrong with the files is found before the first connection.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/tls_files.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace luwu::rpc {

// Null: plain text.
using Credentials = std::shared_ptr<grpc::ChannelCredentials>;

inline constexpr uint32_t kTlsRefreshS = 60;

// Null for no files. The server's certificate must be valid for the host that is dialled.
StatusOr<Credentials> MakeCredentials(const TlsFiles& files, uint32_t refresh_s = kTlsRefreshS);

// Plain text for no files. Clients must show a certificate of the CA.
StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files, uint32_t refresh_s = kTlsRefreshS);

// LUWU_TLS_CA, LUWU_TLS_CERTIFICATE, LUWU_TLS_KEY; empty where they are not set.
TlsFiles TlsFilesFromEnvironment();

// From now on `tell(why)` is called for each handshake that fails in this process, on gRPC's
// threads, since no call comes of it and gRPC would write to stderr. What else gRPC writes there it
// still does. Once per process; not when GRPC_VERBOSITY asks for gRPC's own lines.
void ObserveFailedHandshakes(void (*tell)(const std::string& why));

// What gRPC's words about a connection that did not come about may mean, with a space in front;
// empty when they speak for themselves.
std::string TlsHint(const std::string& message);

}  // namespace luwu::rpc
