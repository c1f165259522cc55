#include "tests/bench/daemons.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "common/base/bytes.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kReadyTimeoutMs = 60'000;
constexpr uint64_t kStatusTimeoutMs = 30'000;
constexpr size_t kLogTailBytes = 2'000;

// The kernel gives ports from here on to outgoing connections: one of those could take a port
// between the look at it and the daemon's start.
uint16_t FirstOutgoingPort() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  uint16_t first = 0;
  file >> first;
  return first;
}

// Ports that nobody listens on now, held together so that they differ.
StatusOr<std::vector<uint16_t>> FreePorts(uint32_t count) {
  constexpr uint16_t kFirst = 10'000;
  constexpr int kAttemptsMax = 1000;
  std::random_device random;
  std::uniform_int_distribution<uint16_t> candidates(
      kFirst, std::max<uint16_t>(FirstOutgoingPort(), kFirst + 1) - 1);
  std::vector<UniqueFd> sockets;
  std::vector<uint16_t> ports;
  for (int attempt = 0; attempt < kAttemptsMax && ports.size() < count; ++attempt) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const uint16_t port = candidates(random);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    ports.push_back(port);
    sockets.push_back(std::move(fd));
  }
  if (ports.size() == count) return ports;
  return Error(ErrorCode::kUnavailable, "no free loopback port in {} attempts", kAttemptsMax);
}

std::string TailOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  return all.substr(all.size() - std::min(all.size(), kLogTailBytes));
}

Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return OkStatus();
  return Error(ErrorCode::kUnavailable, "cannot write {}", path);
}

// luwud writes a line to this pipe when it serves.
Status AwaitReady(int fd, StopCheck stop) {
  pollfd waiter = {.fd = fd, .events = POLLIN, .revents = 0};
  const TimePoint deadline = DeadlineAfter(kReadyTimeoutMs);
  while (poll(&waiter, 1, 100) == 0) {
    if (stop()) return Error(ErrorCode::kCancelled, "stopped by a signal");
    if (MillisecondsUntil(deadline) == 0) {
      return Error(ErrorCode::kDeadline, "not ready within {} ms", kReadyTimeoutMs);
    }
  }
  char byte = 0;
  if (read(fd, &byte, 1) == 1) return OkStatus();
  return Error(ErrorCode::kUnavailable, "ended before it was ready");
}

}  // namespace

StatusOr<Daemons> Daemons::Run(const DaemonOptions& options) {
  Daemons daemons;
  std::string folder = (std::filesystem::temp_directory_path() / "luwu-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return Error(ErrorCode::kUnavailable, "cannot make {}: {}", folder, std::strerror(errno));
  }
  daemons.folder_ = folder;
  ASSIGN_OR_RETURN(const std::vector<uint16_t> ports, FreePorts(2 * options.count));
  std::string node_list;
  std::vector<std::string> endpoints;
  for (uint32_t i = 0; i < options.count; ++i) {
    endpoints.push_back(fmt::format("127.0.0.1:{}", ports[2 * i]));
    node_list +=
        fmt::format("\n[[nodes]]\nname = \"node{}\"\ncontrol = \"{}\"\ndata = \"127.0.0.1:{}\"\n",
                    i, endpoints.back(), ports[2 * i + 1]);
    if (options.shm) node_list += fmt::format("shm = \"{}/node{}.sock\"\n", folder, i);
  }
  daemons.endpoints_ = fmt::format("{}", fmt::join(endpoints, ","));
  for (uint32_t i = 0; i < options.count; ++i) {
    RETURN_IF_ERROR(daemons.StartOne(options, i, node_list));
  }
  daemons.no_signals_ = std::make_unique<cli::StopSignals>();
  daemons.cluster_ = std::make_unique<cli::Cluster>(endpoints, rpc::Credentials(), kStatusTimeoutMs,
                                                    daemons.no_signals_.get());
  return StatusOr<Daemons>(std::move(daemons));
}

Daemons::~Daemons() {
  processes_.clear();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Status Daemons::StartOne(const DaemonOptions& options, uint32_t index,
                         const std::string& node_list) {
  const std::string config = fmt::format("{}/node{}.toml", folder_, index);
  const std::string log = fmt::format("{}/node{}.log", folder_, index);
  const std::string storage =
      options.storage_path.empty()
          ? ""
          : fmt::format("[storage]\npath = \"{}/node{}\"\n\n", options.storage_path, index);
  RETURN_IF_ERROR(
      WriteText(config, fmt::format("[node]\nname = \"node{}\"\n\n[memory]\nbudget = \"{}MiB\"\n\n"
                                    "[optimizer]\nthreads = {}\n\n[session]\nheartbeat_ms = 5000\n"
                                    "lease_ms = 60000\n\n{}[log]\nlevel = \"warning\"\n{}",
                                    index, options.memory_bytes / kMiB + 1, options.update_threads,
                                    storage, node_list)));
  int ready[2] = {-1, -1};
  if (pipe2(ready, O_CLOEXEC) != 0) {
    return Error(ErrorCode::kUnavailable, "cannot make a pipe: {}", std::strerror(errno));
  }
  const UniqueFd read_end(ready[0]);
  UniqueFd write_end(ready[1]);
  ASSIGN_OR_RETURN(Process process,
                   Process::Run({.arguments = {options.binary, "--config", config, "--ready-fd",
                                               std::to_string(write_end.get())},
                                 .kept_fds = {write_end.get()},
                                 .output_path = log}));
  write_end = UniqueFd();
  processes_.push_back(std::move(process));
  const Status status = AwaitReady(read_end.get(), options.stop);
  return Annotate(status, fmt::format("{} (node{})\n{}\n", options.binary, index, TailOf(log)));
}

StatusOr<UpdateCounts> Daemons::Updates(const std::string& job) {
  UpdateCounts counts;
  for (const rpc::NodeStatus& node : cluster_->GetStatus()) {
    RETURN_IF_ERROR(Annotate(node.status.ok() ? OkStatus() : node.status.status(), node.address));
    for (const v1::JobStatus& entry : node.status->jobs()) {
      if (entry.name() != job) continue;
      counts.elements += entry.updated_elements();
      counts.thread_seconds_sum += entry.update_seconds();
      const uint32_t threads = std::max(node.status->update_threads(), 1u);
      counts.alone_seconds_max =
          std::max(counts.alone_seconds_max, entry.update_seconds() / threads);
    }
  }
  return counts;
}

Status Daemons::DeleteJob(const std::string& job) {
  for (const cli::DeleteReport& report : cluster_->DeleteJob(job, true)) {
    RETURN_IF_ERROR(Annotate(report.status, report.address));
  }
  return OkStatus();
}

}  // namespace luwu::bench
