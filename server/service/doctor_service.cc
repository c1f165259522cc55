#include "server/service/doctor_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/doctor/host_checks.h"
#include "server/service/doctor_checks.h"
#include "server/service/peer_reach.h"

namespace luwu {
namespace {

constexpr uint32_t kPeerTimeoutMsMax = 5000;

static_assert(int(doctor::Severity::kOk) == v1::SEVERITY_OK);
static_assert(int(doctor::Severity::kWarn) == v1::SEVERITY_WARN);
static_assert(int(doctor::Severity::kErr) == v1::SEVERITY_ERR);

doctor::StorageFacts FactsOf(const persist::StorageSnapshot& storage) {
  return {.path = storage.path,
          .direct = storage.direct,
          .budget_bytes = storage.budget_bytes,
          .used_bytes = storage.used_bytes,
          .free_bytes = storage.free_bytes,
          .full = storage.full.value_or(""),
          .failed = storage.failed,
          .damaged = storage.damaged.empty() ? "" : storage.damaged.back()};
}

void Append(const doctor::Findings& findings, v1::DiagnoseResponse* response) {
  for (const doctor::Finding& finding : findings) {
    v1::Check* check = response->add_checks();
    check->set_name(std::string(doctor::NameOf(finding.topic)));
    check->set_severity(static_cast<v1::Severity>(finding.severity));
    check->set_summary(finding.summary);
    check->set_hint(finding.hint);
  }
}

v1::DiagnoseResponse Examine(const ServiceContext& services, uint32_t peer_timeout_ms) {
  const DaemonSnapshot snapshot = services.status->Collect();
  v1::DiagnoseResponse response;
  response.set_node(snapshot.node);
  response.set_version(snapshot.version);
  response.set_nodes_fingerprint(services.nodes_fingerprint);
  Append(doctor::CheckHost(doctor::GatherHostFacts(services.rdma),
                           {.daemon = true, .budget_bytes = snapshot.memory_budget_bytes}),
         &response);
  if (snapshot.storage) Append(doctor::CheckStorage(FactsOf(*snapshot.storage)), &response);
  Append(doctor::CheckPeers(ReachPeers(services.jobs->nodes(), services.jobs->self(),
                                       std::clamp(peer_timeout_ms, 1U, kPeerTimeoutMsMax),
                                       services.credentials)),
         &response);
  return response;
}

}  // namespace

grpc::ServerUnaryReactor* DoctorServiceImpl::Diagnose(grpc::CallbackServerContext* context,
                                                      const v1::DiagnoseRequest* request,
                                                      v1::DiagnoseResponse* response) {
  const auto reply = DeferredReply::Create(context, services_.responder);
  if (const Status status = Admit(services_, *context, *request); !status.ok()) {
    reply->Finish(status);
    return reply.get();
  }
  // The server may be rebuilt meanwhile; what the copy points to stays.
  PostOrRefuse(services_.read_queue, reply, services_,
               [services = services_, reply, response, timeout_ms = request->peer_timeout_ms()] {
                 v1::DiagnoseResponse found = Examine(services, timeout_ms);
                 reply->Finish(OkStatus(), [&] { *response = std::move(found); });
               });
  return reply.get();
}

grpc::ServerUnaryReactor* DoctorServiceImpl::ReadClock(grpc::CallbackServerContext* context,
                                                       const v1::ReadClockRequest* request,
                                                       v1::ReadClockResponse* response) {
  return Reply(context, services_, *request, [&]() -> Status {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    response->set_unix_us(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
    return OkStatus();
  });
}

}  // namespace luwu
