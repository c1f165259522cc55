// What the gRPC services work on. Made by the daemon, which owns all of it and keeps it alive until
// its server has shut down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/tls.h"
#include "common/transport/verbs/verbs_options.h"
#include "server/service/access_gate.h"
#include "server/service/checkpoint_maker.h"
#include "server/service/job_registry.h"
#include "server/service/quota_book.h"
#include "server/service/recovery_driver.h"
#include "server/service/reply.h"
#include "server/service/status_snapshot.h"
#include "server/service/work_queue.h"
#include "server/session/session_table.h"

namespace luwu {

struct ServiceContext {
  Responder responder;
  AccessGate* access = nullptr;            // null without [tls]: everybody may do everything
  QuotaBook* quotas = nullptr;             // with it
  rpc::Credentials credentials = nullptr;  // for calls to other daemons
  JobRegistry* jobs = nullptr;
  SessionTable* sessions = nullptr;
  WorkQueue* control_queue = nullptr;  // what takes long or gigabytes
  WorkQueue* read_queue = nullptr;     // reads, which wait for their clients
  WorkQueue* points_queue = nullptr;   // checkpoints, which wait for all nodes and their disks
  WorkQueue* lists_queue = nullptr;    // what is asked about them, and their deletion
  CheckpointMaker* checkpoints = nullptr;
  RecoveryDriver* recovery = nullptr;  // null without a data directory
  const StatusCollector* status = nullptr;
  transport::Acceptor* data_plane = nullptr;  // null on a node that serves no shards
  transport::VerbsOptions rdma = {};
  uint32_t heartbeat_ms = 0;
  uint32_t lease_ms = 0;
  uint64_t nodes_fingerprint = 0;
  std::string boot_id;
};

// What every handler asks first: that the daemon answers calls at all, and that the caller may
// touch the job that the request names. The caller's role was looked at before.
Status Admit(const ServiceContext& services, const grpc::ServerContextBase& context,
             const google::protobuf::Message& request);
// Of an admitted caller; nobody without [tls].
Owner OwnerOf(const ServiceContext& services, const grpc::ServerContextBase& context);

// Runs `body` (returning Status) when the call is admitted, and finishes it.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                const ServiceContext& services, const Request& request,
                                Body&& body) {
  Status status = Admit(services, *context, request);
  if (status.ok()) status = std::forward<Body>(body)();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(context, status, services.responder.node));
  return reactor;
}

// A live session and its job.
struct SessionAndJob {
  std::shared_ptr<Session> session;
  std::shared_ptr<Job> job;
};
// What every call of a session begins with. kFenced when it is unknown or has ended, or the
// worker's own fault.
StatusOr<SessionAndJob> FindLiveSession(const ServiceContext& services, uint64_t session_id);

// The caller and this daemon must compute with one node list. kSchemaMismatch.
Status CheckNodesFingerprint(const ServiceContext& services, uint64_t fingerprint,
                             const std::string& caller);

// Text that goes into logs and messages: at most `length_max` printable bytes (UTF-8 is fine).
Status CheckText(const std::string& field, const std::string& text, size_t length_max);
Status CheckJobName(const std::string& name);  // only that it can be looked up and printed

// Puts `task` on the queue, or answers `reply` that the daemon has too much to do. `task` must
// finish the reply.
void PostOrRefuse(WorkQueue* queue, const std::shared_ptr<DeferredReply>& reply,
                  const ServiceContext& services, WorkQueue::Task task);

}  // namespace luwu
