#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/bench/command_loop.h"
#include "tests/bench/samples.h"
#include "tests/bench/yardsticks/yardsticks.h"

namespace luwu::bench {
namespace {

Json IntervalJson(const Interval& interval) {
  return {{"begin", interval.begin}, {"end", interval.end}};
}

class Agent {
 public:
  std::map<std::string, Handler> Handlers() {
    return {
        {"prepare", [this](const Json&) { return Prepare(); }},
        {"memcpy", [this](const Json& c) { return Copy(c.at("bytes")); }},
        {"ring_open", [this](const Json& c) { return OpenRing(c.at("path")); }},
        {"ring_write",
         [this](const Json& c) -> StatusOr<Json> {
           return IntervalJson(WriteRing(ring_, buffers_, c.at("bytes")));
         }},
        {"ring_read",
         [this](const Json& c) -> StatusOr<Json> {
           return IntervalJson(
               ReadRing(ring_, c.at("use"), c.at("wire"), c.at("bytes"), &buffers_));
         }},
        {"listen", [this](const Json&) { return Listen(); }},
        {"accept", [this](const Json&) { return Accept(); }},
        {"connect", [this](const Json& c) { return Connect(c.at("port")); }},
        {"send", [this](const Json& c) { return Send(c.at("bytes")); }},
        {"receive", [this](const Json& c) { return Receive(c.at("bytes")); }},
        {"both", [this](const Json& c) { return Both(c.at("bytes")); }},
        {"echo_serve", [this](const Json&) { return ServeEcho(); }},
        {"echo", [](const Json& c) { return Echo(c.at("port"), c.at("count")); }},
    };
  }

 private:
  StatusOr<Json> Prepare() {
    ASSIGN_OR_RETURN(buffers_, MakeBuffers());
    return Json::object();
  }

  StatusOr<Json> Copy(uint64_t bytes) { return IntervalJson(CopyBytes(&buffers_, bytes)); }

  StatusOr<Json> OpenRing(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.get() < 0) {
      return Error(ErrorCode::kUnavailable, "cannot open {}: {}", path, std::strerror(errno));
    }
    ASSIGN_OR_RETURN(ring_, MapPeerMemory(fd.get(), kRingBytes, true));
    return Json::object();
  }

  StatusOr<Json> Listen() {
    uint16_t port = 0;
    ASSIGN_OR_RETURN(listener_, ListenLoopback(&port));
    return Json{{"port", port}};
  }
  StatusOr<Json> Accept() {
    ASSIGN_OR_RETURN(incoming_, AcceptOne(listener_));
    ASSIGN_OR_RETURN(outgoing_, AcceptOne(listener_));
    return Json::object();
  }
  // One connection for each direction; the first carries connector to acceptor.
  StatusOr<Json> Connect(uint16_t port) {
    ASSIGN_OR_RETURN(outgoing_, ConnectLoopback(port));
    ASSIGN_OR_RETURN(incoming_, ConnectLoopback(port));
    return Json::object();
  }

  StatusOr<Json> Send(uint64_t bytes) {
    ASSIGN_OR_RETURN(const Interval interval, SendBytes(outgoing_, buffers_, bytes));
    return IntervalJson(interval);
  }
  StatusOr<Json> Receive(uint64_t bytes) {
    ASSIGN_OR_RETURN(const Interval interval, ReceiveBytes(incoming_, &buffers_, bytes));
    return IntervalJson(interval);
  }
  StatusOr<Json> Both(uint64_t bytes) {
    StatusOr<Interval> received = Interval{};
    std::thread receiver([&] { received = ReceiveBytes(incoming_, &buffers_, bytes); });
    const StatusOr<Interval> sent = SendBytes(outgoing_, buffers_, bytes);
    receiver.join();
    RETURN_IF_ERROR(sent.status());
    RETURN_IF_ERROR(received.status());
    return IntervalJson(
        {std::min(sent->begin, received->begin), std::max(sent->end, received->end)});
  }

  StatusOr<Json> ServeEcho() {
    ASSIGN_OR_RETURN(echo_server_, StartEchoServer());
    return Json{{"port", echo_server_->port()}};
  }
  static StatusOr<Json> Echo(uint16_t port, uint64_t count) {
    ASSIGN_OR_RETURN(const std::vector<double> latencies_us, EchoLatencies(port, count));
    return Json{{"p50_us", Median(latencies_us)}, {"p99_us", Quantile(latencies_us, 0.99)}};
  }

  Buffers buffers_;
  Mapping ring_;
  UniqueFd listener_;
  UniqueFd incoming_;
  UniqueFd outgoing_;
  std::unique_ptr<EchoServer> echo_server_;
};

}  // namespace

void RunAgent(UniqueFd link) {
  Agent agent;
  RunCommands(Link(std::move(link)), agent.Handlers());
}

}  // namespace luwu::bench
