#include "server/service/control_server.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "common/base/unique_fd.h"
#include "common/rpc/channel.h"
#include "server/service/checkpoint_service.h"
#include "server/service/doctor_service.h"
#include "server/service/interchange_service.h"
#include "server/service/job_service.h"
#include "server/service/local_listener.h"
#include "server/service/peer_service.h"
#include "server/service/session_service.h"
#include "server/service/status_service.h"
#include "server/service/step_service.h"
#include "server/service/tensor_service.h"

namespace luwu {
namespace {

// Once per process, before the first server is built: gRPC reads both when it builds one.
void EnablePlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // The caller is told of a request that cannot be parsed; a line on stderr for each is noise.
    google::protobuf::SetLogHandler(nullptr);
  });
}

class GrpcControlServer final : public ControlServer {
 public:
  explicit GrpcControlServer(const ServiceContext& services)
      : access_(services.access),
        jobs_(services),
        sessions_(services),
        steps_(services),
        tensors_(services),
        status_(services),
        peers_(services),
        checkpoints_(services),
        interchange_(services),
        doctor_(services) {}
  ~GrpcControlServer() override { Shutdown(0); }

  Status Listen(const std::string& address, const ControlSecurity& security) {
    EnablePlugins();
    ASSIGN_OR_RETURN(const auto credentials,
                     rpc::MakeServerCredentials(security.files, security.refresh_s));
    if (access_ != nullptr) credentials->SetAuthMetadataProcessor(MakeMethodGate(access_));
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort(address, credentials);
    for (grpc::Service* service : Services()) builder.RegisterService(service);
    if (access_ != nullptr && !security.local_socket.empty()) PrepareLocal(&builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return Error(ErrorCode::kUnavailable, "the control address {} cannot be listened on",
                   address);
    }
    SetServing(false);
    if (acceptors_.empty()) return OkStatus();
    ASSIGN_OR_RETURN(local_, LocalListener::Start(security.local_socket,
                                                  [this](UniqueFd socket, const CallerNames& user) {
                                                    TakeLocal(std::move(socket), user);
                                                  }));
    return OkStatus();
  }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    for (const char* name :
         {"", v1::JobService::service_full_name(), v1::SessionService::service_full_name(),
          v1::StepService::service_full_name(), v1::TensorService::service_full_name(),
          v1::StatusService::service_full_name(), v1::PeerService::service_full_name(),
          v1::CheckpointService::service_full_name(), v1::InterchangeService::service_full_name(),
          v1::DoctorService::service_full_name()}) {
      health->SetServingStatus(name, serving);
    }
  }

  void Shutdown(uint64_t grace_ms) override {
    if (server_ == nullptr) return;
    local_.reset();
    server_->Shutdown(std::chrono::system_clock::now() + Milliseconds(grace_ms));
    server_->Wait();
    server_.reset();
  }

 private:
  // gRPC does not tell handlers which user has connected, but which credentials a connection was
  // made with: each entry of [[access]] has some of its own.
  void PrepareLocal(grpc::ServerBuilder* builder) {
    for (const std::string& identity : access_->LocalIdentities()) {
      const auto credentials = grpc::experimental::LocalServerCredentials(UDS);
      credentials->SetAuthMetadataProcessor(MakeLocalGate(access_, identity));
      acceptors_[identity] = builder->experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    }
  }

  void TakeLocal(UniqueFd socket, const CallerNames& user) {
    const auto acceptor = acceptors_.find(access_->AdmitUser(user));
    if (acceptor == acceptors_.end()) return;  // closed
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket.Release();  // closed by gRPC, also after the server's end
    acceptor->second->HandleNewConnection(&connection);
  }

  std::array<grpc::Service*, 9> Services() {
    return {&jobs_,  &sessions_,    &steps_,       &tensors_, &status_,
            &peers_, &checkpoints_, &interchange_, &doctor_};
  }

  AccessGate* const access_;  // null: no checks
  JobServiceImpl jobs_;
  SessionServiceImpl sessions_;
  StepServiceImpl steps_;
  TensorServiceImpl tensors_;
  StatusServiceImpl status_;
  PeerServiceImpl peers_;
  CheckpointServiceImpl checkpoints_;
  InterchangeServiceImpl interchange_;
  DoctorServiceImpl doctor_;
  // By the identity of their entry.
  std::map<std::string, std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>> acceptors_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<LocalListener> local_;  // uses both
};

// The name lookup is by the resolver's rules, as gRPC's own.
struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

uint16_t PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  char port[NI_MAXSERV] = "0";
  // The address is passed on as the generic type it was filled in as.
  auto* generic = static_cast<sockaddr*>(static_cast<void*>(&bound));
  if (::getsockname(fd, generic, &length) != 0) return 0;
  ::getnameinfo(generic, length, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
  return static_cast<uint16_t>(std::strtoul(port, nullptr, 10));
}

}  // namespace

StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& address,
                                                              const ControlSecurity& security,
                                                              const ServiceContext& services) {
  auto server = std::make_unique<GrpcControlServer>(services);
  RETURN_IF_ERROR(server->Listen(address, security));
  return server;
}

StatusOr<uint16_t> ProbePort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, "'{}' is not of the form host:port", address);
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  AddressList found;
  const int error = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found.first);
  if (error != 0) {
    return Error(ErrorCode::kUnavailable, "the address {} cannot be resolved: {}", address,
                 ::gai_strerror(error));
  }
  const UniqueFd fd(::socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), found.first->ai_addr, found.first->ai_addrlen) == 0 &&
      ::listen(fd.get(), 1) == 0) {
    return PortOf(fd.get());
  }
  if (errno == EADDRINUSE) {
    return Error(ErrorCode::kUnavailable,
                 "the address {} is in use; another luwud may be running: stop it, or choose "
                 "another port",
                 address);
  }
  return Error(ErrorCode::kUnavailable, "the address {} cannot be listened on: {}", address,
               std::strerror(errno));
}

}  // namespace luwu
