#include "server/service/session_service.h"

#include <utility>
#include <vector>

namespace luwu {
namespace {

constexpr size_t kHostMax = 255;
constexpr int kRegionsMax = 16;

using Regions = std::vector<transport::RegionDescriptor>;

struct OpenArguments {
  std::string job;
  uint64_t epoch = 0;
  WorkerIdentity identity;
  Owner owner;
};

StatusOr<OpenArguments> CheckedArguments(const v1::OpenSessionRequest& request) {
  OpenArguments out;
  RETURN_IF_ERROR(CheckJobName(request.job()));
  RETURN_IF_ERROR(CheckText("host", request.host(), kHostMax));
  if (request.epoch() == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "a session needs the job's epoch, which CreateOrJoin returns; 0 is none");
  }
  out.job = request.job();
  out.epoch = request.epoch();
  out.identity.rank = request.rank();
  out.identity.restart_count = request.restart_count();
  out.identity.host = request.host();
  out.identity.pid = request.pid();
  return out;
}

struct OpenedSession {
  std::shared_ptr<Job> job;
  std::shared_ptr<Session> session;
  uint64_t current_step = 0;
};

StatusOr<OpenedSession> OpenSession(const ServiceContext& services,
                                    const OpenArguments& arguments) {
  RETURN_IF_ERROR(services.responder.admission->Check());
  OpenedSession out;
  ASSIGN_OR_RETURN(out.job, services.jobs->Find(arguments.job, arguments.epoch));
  std::shared_ptr<const QuotaBook::Claim> claim;
  if (services.quotas != nullptr) {
    const HeldRank rank = {arguments.job, arguments.identity.rank,
                           out.job->spec().slots_per_worker};
    ASSIGN_OR_RETURN(claim, services.quotas->BeginSession(arguments.owner, rank));
  }
  ASSIGN_OR_RETURN(out.session, out.job->OpenSession(arguments.identity));
  out.current_step = out.job->current_step();
  return out;
}

StatusOr<Regions> CheckedRegions(const v1::ExchangeRegionsRequest& request) {
  if (request.regions_size() > kRegionsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} regions; at most {} are allowed",
                 request.regions_size(), kRegionsMax);
  }
  if (request.connections() < 1 || request.connections() > transport::kConnectionsMax) {
    return Error(ErrorCode::kInvalidArgument, "connections is {}; choose 1 to {}",
                 request.connections(), transport::kConnectionsMax);
  }
  Regions regions;
  for (const v1::RegionDescriptor& region : request.regions()) {
    regions.push_back({.id = region.id(),
                       .bytes = region.bytes(),
                       .access = region.remote_write() ? transport::Access::kRemoteWrite
                                                       : transport::Access::kRemoteRead});
  }
  return regions;
}

Status PrepareVerbs(const ServiceContext& services, const Session& session) {
  if (services.data_plane == nullptr) {
    return Error(ErrorCode::kUnsupported, "this node has no data plane");
  }
  const Status usable = services.data_plane->CheckVerbs();
  if (!usable.ok()) {
    return Error(ErrorCode::kUnsupported, "the daemon takes no RDMA links: {}", MessageOf(usable));
  }
  ASSIGN_OR_RETURN(const transport::SessionTerms terms, session.Terms());
  return services.data_plane->PrepareVerbs(terms);
}

StatusOr<Regions> Exchange(const ServiceContext& services,
                           const v1::ExchangeRegionsRequest& request) {
  RETURN_IF_ERROR(services.responder.admission->Check());
  ASSIGN_OR_RETURN(const SessionAndJob found, FindLiveSession(services, request.session_id()));
  ASSIGN_OR_RETURN(const Regions regions, CheckedRegions(request));
  ASSIGN_OR_RETURN(Regions exposed,
                   found.session->SetClientRegions(regions, request.connections()));
  if (request.verbs()) RETURN_IF_ERROR(PrepareVerbs(services, *found.session));
  return exposed;
}

void FillRegions(const Regions& regions, v1::ExchangeRegionsResponse* response) {
  for (const transport::RegionDescriptor& region : regions) {
    v1::RegionDescriptor* out = response->add_regions();
    out->set_id(region.id);
    out->set_bytes(region.bytes);
    out->set_remote_write(region.access == transport::Access::kRemoteWrite);
  }
}

}  // namespace

grpc::ServerUnaryReactor* SessionServiceImpl::Open(grpc::CallbackServerContext* context,
                                                   const v1::OpenSessionRequest* request,
                                                   v1::OpenSessionResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  const Status admitted = Admit(services_, *context, *request);
  StatusOr<OpenArguments> arguments =
      admitted.ok() ? CheckedArguments(*request) : StatusOr<OpenArguments>(admitted);
  if (!arguments.ok()) {
    reply->Finish(arguments.status());
    return reply.get();
  }
  arguments->owner = OwnerOf(services_, *context);
  arguments->identity.owner = arguments->owner.identity;
  const auto open = [this, reply, response, arguments = *std::move(arguments)] {
    if (reply->finished()) return;  // the client gave up before its turn came
    const StatusOr<OpenedSession> opened = OpenSession(services_, arguments);
    const bool answered = reply->Finish(opened.status(), [&] {
      const Session& session = *opened->session;
      response->set_session_id(session.id());
      response->set_secret(session.secret().data(), session.secret().size());
      response->set_heartbeat_ms(services_.heartbeat_ms);
      response->set_lease_ms(services_.lease_ms);
      response->set_current_step(opened->current_step);
      response->set_window_slots(opened->job->shard_map().window_slots());
    });
    // Nobody knows of this session, so nobody could close it.
    if (!answered && opened.ok()) opened->job->CloseSession(opened->session);
  };
  PostOrRefuse(services_.control_queue, reply, services_, open);
  return reply.get();
}

grpc::ServerUnaryReactor* SessionServiceImpl::ExchangeRegions(
    grpc::CallbackServerContext* context, const v1::ExchangeRegionsRequest* request,
    v1::ExchangeRegionsResponse* response) {
  if (!request->verbs()) {
    return Reply(context, services_, *request, [&]() -> Status {
      ASSIGN_OR_RETURN(const Regions exposed, Exchange(services_, *request));
      FillRegions(exposed, response);
      return OkStatus();
    });
  }
  // Registering gigabytes takes seconds. The request is the call's, which may end before.
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = Admit(services_, *context, *request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.control_queue, reply, services_, [this, reply, response, copy = *request] {
    if (reply->finished()) return;
    const StatusOr<Regions> exposed = Exchange(services_, copy);
    reply->Finish(exposed.status(), [&] { FillRegions(*exposed, response); });
  });
  return reply.get();
}

grpc::ServerUnaryReactor* SessionServiceImpl::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    ASSIGN_OR_RETURN(const SessionAndJob found, FindLiveSession(services_, request->session_id()));
    RETURN_IF_ERROR(found.session->Renew());
    response->set_current_step(found.job->current_step());
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SessionServiceImpl::Close(grpc::CallbackServerContext* context,
                                                    const v1::CloseSessionRequest* request,
                                                    v1::CloseSessionResponse*) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = Admit(services_, *context, *request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  PostOrRefuse(services_.control_queue, reply, services_,
               [this, reply, id = request->session_id()] {
                 // Also one that ended by a fault may be closed; one that is gone cannot.
                 const StatusOr<std::shared_ptr<Session>> session = services_.sessions->Find(id);
                 if (session.ok()) {
                   if (const std::shared_ptr<Job> job = (*session)->job()) {
                     job->CloseSession(*session);
                   }
                 }
                 reply->Finish(session.status());
               });
  return reply.get();
}

}  // namespace luwu
