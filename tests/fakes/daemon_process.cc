#include "tests/fakes/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace luwu::testing {
namespace {

constexpr int kReadyMs = 60'000;

// Distinct loopback ports that nobody listens on now.
std::vector<uint16_t> FreePorts(size_t count) {
  std::vector<int> sockets;
  std::vector<uint16_t> ports;
  for (size_t i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (fd < 0 || ::bind(fd, generic, bytes) != 0 || ::getsockname(fd, generic, &bytes) != 0) {
      throw std::runtime_error("no free loopback port");
    }
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) ::close(fd);
  return ports;
}

// True when a byte came before the end of the pipe or the timeout.
bool AwaitByte(int fd, int timeout_ms) {
  pollfd poll = {.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&poll, 1, timeout_ms) <= 0) return false;
  char byte = 0;
  return ::read(fd, &byte, 1) == 1;
}

}  // namespace

DaemonCluster::DaemonCluster(const std::string& binary, const ClusterOptions& options)
    : binary_(binary) {
  std::string pattern = std::filesystem::temp_directory_path() / "luwu-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = pattern;
  const std::vector<uint16_t> ports = FreePorts(2 * options.nodes);
  for (uint32_t i = 0; i < options.nodes; ++i) {
    Member member;
    member.control_port = ports[2 * i];
    member.data_port = ports[2 * i + 1];
    member.folder = folder_ + "/n" + std::to_string(i);
    std::filesystem::create_directory(member.folder);
    members_.push_back(member);
  }
  try {
    for (uint32_t i = 0; i < options.nodes; ++i) {
      std::ofstream(members_[i].folder + "/luwud.toml") << ConfigText(i, options);
      Start(members_[i]);
    }
  } catch (...) {
    for (uint32_t i = 0; i < options.nodes; ++i) Kill(i);
    throw;
  }
}

DaemonCluster::~DaemonCluster() {
  for (uint32_t i = 0; i < members_.size(); ++i) Kill(i);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string DaemonCluster::ConfigText(uint32_t node, const ClusterOptions& options) const {
  std::ostringstream text;
  text << "[node]\nname = \"n" << node << "\"\n\n[memory]\nbudget = \"" << options.memory
       << "\"\n\n[optimizer]\nthreads = " << options.threads
       << "\n\n[session]\nheartbeat_ms = " << options.heartbeat_ms
       << "\nlease_ms = " << options.lease_ms << "\n\n[log]\nlevel = \"info\"\n";
  for (uint32_t i = 0; i < members_.size(); ++i) {
    const uint32_t weight = options.weights.empty() ? 1 : options.weights[i];
    text << "\n[[nodes]]\nname = \"n" << i << "\"\nweight = " << weight << "\ncontrol = \""
         << endpoint(i) << "\"\ndata = \"127.0.0.1:" << members_[i].data_port << "\"\nshm = \""
         << members_[i].folder << "/shm.sock\"\n";
  }
  return text.str();
}

void DaemonCluster::Start(Member& member) {
  int ready[2] = {-1, -1};
  if (::pipe(ready) != 0) throw std::runtime_error("no pipe");
  const std::string config = member.folder + "/luwud.toml";
  const std::string log = member.folder + "/luwud.log";
  const std::string ready_fd = std::to_string(ready[1]);
  member.pid = ::fork();
  if (member.pid == 0) {
    ::setsid();  // a Ctrl-C reaches the test, which then ends us
    // Neither does a crashed test leave us behind. The kernel means the thread that started us.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::close(ready[0]);
    ::execl(binary_.c_str(), binary_.c_str(), "--config", config.c_str(), "--ready-fd",
            ready_fd.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ready[1]);
  const bool serves = member.pid > 0 && AwaitByte(ready[0], kReadyMs);
  ::close(ready[0]);
  if (serves) return;
  std::ifstream file(log);
  std::ostringstream tail;
  tail << file.rdbuf();
  throw std::runtime_error("luwud did not start: " + tail.str());
}

std::string DaemonCluster::endpoint(uint32_t node) const {
  return "127.0.0.1:" + std::to_string(members_[node].control_port);
}

std::string DaemonCluster::endpoints() const {
  std::string text;
  for (uint32_t i = 0; i < members_.size(); ++i) text += (i > 0 ? "," : "") + endpoint(i);
  return text;
}

void DaemonCluster::Kill(uint32_t node) {
  Member& member = members_[node];
  if (member.pid <= 0) return;
  ::kill(member.pid, SIGKILL);
  int status = 0;
  ::waitpid(member.pid, &status, 0);
  member.pid = -1;
}

void DaemonCluster::Pause(uint32_t node) {
  ::kill(members_[node].pid, SIGSTOP);
  int status = 0;
  ::waitpid(members_[node].pid, &status, WUNTRACED);  // until it has really stopped
}
void DaemonCluster::Resume(uint32_t node) { ::kill(members_[node].pid, SIGCONT); }

std::string DaemonCluster::LogOf(uint32_t node) const {
  std::ifstream file(members_[node].folder + "/luwud.log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace luwu::testing
