#include "tests/bench/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace luwu::bench {
namespace {

constexpr uint64_t kEndTimeoutMs = 10'000;
constexpr int kPollMicroseconds = 2'000;

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void Exec(char* const* arguments, const std::vector<int>& kept_fds, int output) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int fd : kept_fds) fcntl(fd, F_SETFD, 0);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

StatusOr<Process> Process::Run(const Start& start) {
  std::vector<char*> arguments;
  for (const std::string& argument : start.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  UniqueFd output;
  if (!start.output_path.empty()) {
    output =
        UniqueFd(open(start.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (output.get() < 0) {
      return Error(ErrorCode::kUnavailable, "cannot write {}: {}", start.output_path,
                   std::strerror(errno));
    }
  }
  const pid_t pid = fork();
  if (pid < 0) return Error(ErrorCode::kUnavailable, "cannot fork: {}", std::strerror(errno));
  if (pid == 0) Exec(arguments.data(), start.kept_fds, output.get());
  return Process(pid);
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    End();
    pid_ = std::exchange(other.pid_, -1);
  }
  return *this;
}

Process::~Process() { End(); }

void Process::End() {
  if (pid_ < 0) return;
  kill(pid_, SIGTERM);
  const TimePoint deadline = DeadlineAfter(kEndTimeoutMs);
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (MillisecondsUntil(deadline) == 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      break;
    }
    usleep(kPollMicroseconds);
  }
  pid_ = -1;
}

StatusOr<int> Process::Wait(StopCheck stop) {
  int ended = 0;
  while (waitpid(pid_, &ended, WNOHANG) == 0) {
    if (stop()) return Error(ErrorCode::kCancelled, "stopped by a signal");
    usleep(kPollMicroseconds);
  }
  pid_ = -1;
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

double Process::CpuSeconds() const {
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::string SiblingProgram(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

StatusOr<Child> Child::RunAgent(StopCheck stop) {
  return Run("yardstick agent", {"/proc/self/exe", "agent"}, stop);
}

StatusOr<Child> Child::RunWorker(StopCheck stop) {
  return Run("worker", {SiblingProgram("luwu-bench-worker")}, stop);
}

StatusOr<Child> Child::Run(const std::string& name, std::vector<std::string> arguments,
                           StopCheck stop) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error(ErrorCode::kUnavailable, "cannot make a socket pair: {}", std::strerror(errno));
  }
  const UniqueFd childs_end(ends[1]);
  Child child;
  child.name_ = name;
  child.stop_ = stop;
  child.link_ = Link(UniqueFd(ends[0]));
  arguments.push_back(std::to_string(childs_end.get()));
  ASSIGN_OR_RETURN(child.process_, Process::Run({.arguments = std::move(arguments),
                                                 .kept_fds = {childs_end.get()},
                                                 .output_path = ""}));
  return child;
}

Status Child::Send(const Json& command) {
  return Annotate(link_.Send(command), fmt::format("{} (pid {})", name_, process_.pid()));
}

StatusOr<Json> Child::Receive(uint64_t timeout_ms) {
  StatusOr<Json> reply = link_.Receive(DeadlineAfter(timeout_ms), stop_);
  const std::string who = fmt::format("{} (pid {})", name_, process_.pid());
  if (!reply.ok()) return Annotate(reply.status(), who);
  if (reply->contains("error")) {
    return Error(ErrorCode::kState, "{}: {}", who, reply->at("error").get<std::string>());
  }
  return reply;
}

StatusOr<Json> Child::Call(const Json& command) {
  RETURN_IF_ERROR(Send(command));
  return Receive();
}

StatusOr<std::vector<Json>> CallAll(std::span<Child> children, const Json& command) {
  for (Child& child : children) RETURN_IF_ERROR(child.Send(command));
  std::vector<Json> replies;
  Status first;
  for (Child& child : children) {
    StatusOr<Json> reply = child.Receive();
    if (!reply.ok() && first.ok()) first = reply.status();
    if (reply.ok()) replies.push_back(*std::move(reply));
  }
  RETURN_IF_ERROR(first);
  return replies;
}

}  // namespace luwu::bench
