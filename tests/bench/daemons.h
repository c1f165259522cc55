// The luwud processes of a bench run: on free loopback ports, in a temporary folder that goes with
// the object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/cluster.h"
#include "tests/bench/child.h"

namespace luwu::bench {

struct DaemonOptions {
  std::string binary;
  uint32_t count = 1;
  uint64_t memory_bytes = 0;  // budget of each
  uint32_t update_threads = 0;
  bool shm = true;
  // A folder; data directories are made in it. Empty: none.
  std::string storage_path = {};
  StopCheck stop = NeverStop;
};

// Of one job over all daemons, since the job began.
struct UpdateCounts {
  uint64_t elements = 0;
  double thread_seconds_sum = 0;
  // Of the busiest daemon: thread seconds / update threads, the least time its updates can take.
  double alone_seconds_max = 0;
};

class Daemons {
 public:
  static StatusOr<Daemons> Run(const DaemonOptions& options);
  Daemons(Daemons&&) = default;
  ~Daemons();

  const std::string& endpoints() const { return endpoints_; }
  const std::vector<Process>& processes() const { return processes_; }
  StatusOr<UpdateCounts> Updates(const std::string& job);
  Status DeleteJob(const std::string& job);

 private:
  Daemons() = default;
  Status StartOne(const DaemonOptions& options, uint32_t index, const std::string& node_list);

  std::string folder_;
  std::string endpoints_;
  std::unique_ptr<cli::StopSignals> no_signals_;
  std::unique_ptr<cli::Cluster> cluster_;
  std::vector<Process> processes_;
};

}  // namespace luwu::bench
