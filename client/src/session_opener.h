// Opens a session: finds the nodes, creates or joins the job on each, opens a session on each,
// exchanges regions and dials the data plane, by shared memory where the daemon is on this host,
// else by RDMA where both ends have a device, else by tcp. What it had opened when something fails
// is closed again, and a job that this very call created is deleted.
//
// Runs on the caller's thread; heartbeats begin on each node as soon as it has opened the session.
// One object per attempt. Errors name the node.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/session.h"
#include "common/base/tls_files.h"
#include "common/rpc/tls.h"
#include "common/transport/fault/fault_endpoint.h"

namespace luwu::client {

enum class TransportChoice : uint8_t { kAuto = 0, kShm = 1, kTcp = 2, kVerbs = 3 };

struct OpenOptions {
  std::vector<std::string> endpoints;  // of any daemons; the first that answers is asked
  JobSpec job;
  uint32_t rank = 0;
  uint64_t restart_count = 0;
  TransportChoice transport = TransportChoice::kAuto;
  uint32_t tcp_connections = 2;  // verbs: queue pairs, at most 8
  transport::VerbsOptions rdma;
  VerifyPayload verify = VerifyPayload::kOverTcp;
  uint32_t timeout_ms = 30'000;
  uint32_t patience_ms = 5'000;  // with a node that does not answer
  bool must_train = false;       // refuse a job that accepts no further step
  transport::FaultPlan faults;
  TlsFiles tls;  // empty: plain text
};

class SessionOpener {
 public:
  explicit SessionOpener(OpenOptions options);

  StatusOr<std::shared_ptr<Session>> Open();

 private:
  Status Validate() const;
  Status Prepare();
  Status FindNodes();
  Status ConnectNodes();
  Status JoinJob();
  Status CheckParts(uint32_t lead) const;
  Status CheckGoesOn() const;
  Status OpenSessions();
  Status AgreeOnStep();
  Status LinkNodes();
  Status LinkNode(uint32_t node);
  Status TryLink(uint32_t node, transport::Kind kind,
                 const std::shared_ptr<transport::LocalRegion>& board);
  Status CheckRegions(uint32_t node, const std::vector<transport::RegionDescriptor>& regions) const;
  std::string WhyNot(uint32_t node, transport::Kind kind) const;
  void Undo();

  // Makes one call on each of `nodes` at the same time, again while some answer kUnavailable.
  template <typename T, typename Start>
  StatusOr<std::vector<T>> Call(const std::vector<uint32_t>& nodes, const Start& start);

  const OpenOptions options_;
  const TimePoint deadline_;
  rpc::Credentials credentials_;
  std::vector<Node> nodes_;
  uint64_t fingerprint_ = 0;
  std::vector<uint32_t> active_;
  std::vector<std::string> boot_ids_;  // by node
  std::vector<JoinReply> joined_;      // by node
  std::vector<OpenReply> opened_;      // by node; session id 0: none
  std::vector<bool> created_on_;       // by node
  uint64_t epoch_ = 0;
  uint64_t current_step_ = 0;
  SessionParts parts_;
};

// Opens with one SessionOpener after the other while the job is being rolled back under them.
StatusOr<std::shared_ptr<Session>> OpenSession(const OpenOptions& options);

}  // namespace luwu::client
