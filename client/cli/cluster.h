// The daemons of a cluster as luwuctl sees them: found through JobService.ListNodes on the
// endpoints that the user gave, then asked directly, all at once. A daemon that does not answer is
// a report with an error, never a failure of the whole.
//
// One thread. Connections live as long as the object, so --watch does not reconnect every frame.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/stop_signals.h"
#include "common/rpc/status_json.h"
#include "common/rpc/tls.h"

namespace grpc {
class Channel;
}

namespace luwu::cli {

struct HealthReport {
  rpc::NodeStatus node;
  std::string health;  // "SERVING", "NOT_SERVING", ...; "UNREACHABLE" without an answer
};

struct DeleteReport {
  std::string name;
  std::string address;
  Status status;
};

class Cluster {
 public:
  Cluster(std::vector<std::string> endpoints, rpc::Credentials credentials, uint64_t timeout_ms,
          StopSignals* stop);
  ~Cluster();

  // One entry for each node of the lists that the endpoints gave (their union, when they belong to
  // several clusters) and for each endpoint that gave none and is on no list.
  std::vector<rpc::NodeStatus> GetStatus();
  std::vector<HealthReport> GetHealth();
  // On the lead first, without which no round of recovery can bring the job back; when that fails,
  // the others keep it and their reports say so, unless `force`.
  std::vector<DeleteReport> DeleteJob(const std::string& job, bool force);

 private:
  struct Target {
    std::string name;
    std::string address;
    bool serves_shards = false;
  };
  // Asks the endpoints for their node lists again: a daemon may have come up since.
  std::vector<Target> FindTargets();
  struct Deletion {
    std::string job;
    bool force = false;
  };
  void DeleteOn(const std::vector<Target>& targets, const Deletion& deletion,
                std::vector<DeleteReport>* reports);
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);

  const std::vector<std::string> endpoints_;
  const rpc::Credentials credentials_;
  const uint64_t timeout_ms_;
  StopSignals* const stop_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace luwu::cli
