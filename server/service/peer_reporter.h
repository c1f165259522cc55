// The StepReporter of a job on a node that is not its lead: tells the lead over gRPC how a step
// ended here and waits for the decision. A lead that does not answer is tried again, with growing
// pauses, until `give_up_ms`; then the report ends with kNodeLost naming the lead, and the job
// reports again when it likes. Holds no thread while it waits.
//
// Owned by its job; Report() from any thread. The destructor ends the reports that are left with
// kCancelled and does not wait for the network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "server/step/step_reporter.h"

namespace luwu {

struct PeerReporterOptions {
  std::shared_ptr<grpc::Channel> channel;  // to the lead
  std::string job;
  uint64_t epoch = 0;
  uint32_t self = 0;
  uint64_t nodes_fingerprint = 0;
  std::string lead_name;         // for messages
  std::string lead_address;      // for messages
  uint64_t wait_ms = 10'000;     // how long the lead may take to answer one attempt
  uint64_t give_up_ms = 15'000;  // without any answer
};

std::unique_ptr<StepReporter> MakePeerReporter(PeerReporterOptions options);

}  // namespace luwu
