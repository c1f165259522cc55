#include "tests/bench/pairs.h"

#include <unistd.h>

namespace luwu::bench {

StatusOr<std::unique_ptr<YardstickPairs>> YardstickPairs::Start(uint32_t count, StopCheck stop) {
  std::unique_ptr<YardstickPairs> pairs(new YardstickPairs);
  for (uint32_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(Child near, Child::RunAgent(stop));
    ASSIGN_OR_RETURN(Child far, Child::RunAgent(stop));
    pairs->near_.push_back(std::move(near));
    pairs->far_.push_back(std::move(far));
  }
  RETURN_IF_ERROR(pairs->Connect());
  return StatusOr<std::unique_ptr<YardstickPairs>>(std::move(pairs));
}

Status YardstickPairs::Connect() {
  RETURN_IF_ERROR(CallAll(near_, {{"do", "prepare"}}).status());
  RETURN_IF_ERROR(CallAll(far_, {{"do", "prepare"}}).status());
  for (size_t i = 0; i < near_.size(); ++i) {
    ASSIGN_OR_RETURN(SharedMemory ring, CreateShared("luwu-bench-ring", kRingBytes));
    const Json open = {{"do", "ring_open"},
                       {"path", fmt::format("/proc/{}/fd/{}", getpid(), ring.fd.get())}};
    RETURN_IF_ERROR(near_[i].Call(open).status());
    RETURN_IF_ERROR(far_[i].Call(open).status());
    rings_.push_back(std::move(ring));
    ASSIGN_OR_RETURN(const Json listening, far_[i].Call({{"do", "listen"}}));
    RETURN_IF_ERROR(near_[i].Send({{"do", "connect"}, {"port", listening.at("port")}}));
    RETURN_IF_ERROR(far_[i].Call({{"do", "accept"}}).status());
    RETURN_IF_ERROR(near_[i].Receive().status());
  }
  ASSIGN_OR_RETURN(const Json echo, far_[0].Call({{"do", "echo_serve"}}));
  echo.at("port").get_to(echo_port_);
  return OkStatus();
}

StatusOr<Cost> YardstickPairs::Transfer(uint64_t bytes, const Json& near_command,
                                        const Json& far_command) {
  CostMeter meter(ProcessesOf(near_), ProcessesOf(far_));
  for (Child& child : far_) RETURN_IF_ERROR(child.Send(far_command));
  ASSIGN_OR_RETURN(std::vector<Json> replies, CallAll(near_, near_command));
  for (Child& child : far_) {
    ASSIGN_OR_RETURN(Json reply, child.Receive());
    replies.push_back(std::move(reply));
  }
  return meter.Finish(bytes * near_.size(), replies);
}

StatusOr<Cost> YardstickPairs::Memcpy(uint64_t bytes) {
  CostMeter meter(ProcessesOf(near_), {});
  ASSIGN_OR_RETURN(const std::vector<Json> replies,
                   CallAll(near_, {{"do", "memcpy"}, {"bytes", bytes}}));
  return meter.Finish(bytes * near_.size(), replies);
}

StatusOr<Cost> YardstickPairs::Ring(uint64_t bytes, RingUse use, DType wire) {
  return Transfer(bytes, {{"do", "ring_write"}, {"bytes", bytes}},
                  {{"do", "ring_read"}, {"use", use}, {"wire", wire}, {"bytes", bytes}});
}

StatusOr<Cost> YardstickPairs::SocketOneWay(uint64_t bytes) {
  return Transfer(bytes, {{"do", "send"}, {"bytes", bytes}}, {{"do", "receive"}, {"bytes", bytes}});
}

StatusOr<Cost> YardstickPairs::SocketBothWays(uint64_t bytes) {
  const Json both = {{"do", "both"}, {"bytes", bytes}};
  ASSIGN_OR_RETURN(Cost cost, Transfer(bytes, both, both));
  cost.directions = 2;
  return cost;
}

StatusOr<Latency> YardstickPairs::Echo(uint64_t count) {
  ASSIGN_OR_RETURN(const Json reply,
                   near_[0].Call({{"do", "echo"}, {"port", echo_port_}, {"count", count}}));
  return Latency{reply.at("p50_us"), reply.at("p99_us")};
}

}  // namespace luwu::bench
