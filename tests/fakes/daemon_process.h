// Real luwud processes for C++ tests: one cluster of nodes on free loopback ports, each with its
// configuration and log in a temporary folder. The destructor ends every process it started and
// removes the folder; a failed start throws std::runtime_error with the tail of the log.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace luwu::testing {

struct ClusterOptions {
  uint32_t nodes = 1;
  std::string memory = "256MiB";
  uint32_t threads = 1;
  uint32_t heartbeat_ms = 200;
  uint32_t lease_ms = 2000;
  std::vector<uint32_t> weights = {};  // empty: 1 each
};

class DaemonCluster {
 public:
  // `binary` is the path of luwud. All nodes serve when this returns.
  DaemonCluster(const std::string& binary, const ClusterOptions& options);
  ~DaemonCluster();
  DaemonCluster(const DaemonCluster&) = delete;
  DaemonCluster& operator=(const DaemonCluster&) = delete;

  std::string endpoints() const;  // "127.0.0.1:40001,127.0.0.1:40003"
  std::string endpoint(uint32_t node) const;
  void Kill(uint32_t node);    // SIGKILL, and waits for it
  void Pause(uint32_t node);   // SIGSTOP, and waits until it stands still
  void Resume(uint32_t node);  // SIGCONT
  std::string LogOf(uint32_t node) const;

 private:
  struct Member {
    uint16_t control_port = 0;
    uint16_t data_port = 0;
    pid_t pid = -1;
    std::string folder;
  };
  std::string ConfigText(uint32_t node, const ClusterOptions& options) const;
  void Start(Member& member);

  const std::string binary_;
  std::string folder_;
  std::vector<Member> members_;
};

}  // namespace luwu::testing
