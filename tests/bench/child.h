// Processes that the driver starts: yardstick agents (luwu-bench itself), workers
// (luwu-bench-worker) and daemons. Each runs in a process group of its own (Ctrl-C reaches the
// driver only), dies with the driver, and is ended by its pid when the object goes.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/link.h"

namespace luwu::bench {

class Process {
 public:
  Process() = default;
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&& other) noexcept;
  ~Process();  // SIGTERM, and SIGKILL when that has not ended it after 10 s

  // `kept_fds` stay open in the child under the same numbers; standard output and error go to
  // `output_path`, or stay the driver's when it is empty.
  struct Start {
    std::vector<std::string> arguments;
    std::vector<int> kept_fds = {};
    std::string output_path = {};
  };
  static StatusOr<Process> Run(const Start& start);

  // Its exit code, or 128 + the signal that ended it; kCancelled when `stop` says so first.
  StatusOr<int> Wait(StopCheck stop);

  pid_t pid() const { return pid_; }
  // User and system time of all its threads so far. Nanosecond clock, readable while it runs.
  double CpuSeconds() const;

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  void End();
  pid_t pid_ = -1;
};

// An agent or a worker, at the other end of a Link.
class Child {
 public:
  static StatusOr<Child> RunAgent(StopCheck stop);
  static StatusOr<Child> RunWorker(StopCheck stop);

  // Send and Receive apart, so that several children can work at the same time.
  Status Send(const Json& command);
  StatusOr<Json> Receive(uint64_t timeout_ms = 600'000);
  StatusOr<Json> Call(const Json& command);

  const Process& process() const { return process_; }

 private:
  Child() = default;
  static StatusOr<Child> Run(const std::string& name, std::vector<std::string> arguments,
                             StopCheck stop);
  std::string name_;
  StopCheck stop_ = NeverStop;
  Link link_;
  Process process_;  // after link_: ends before the link closes
};

// A program in the folder of this one.
std::string SiblingProgram(const std::string& name);

// The same command to all at once; replies in order, or the first error.
StatusOr<std::vector<Json>> CallAll(std::span<Child> children, const Json& command);

}  // namespace luwu::bench
