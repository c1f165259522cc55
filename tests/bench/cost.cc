#include "tests/bench/cost.h"

#include <algorithm>

namespace luwu::bench {
namespace {

double CpuOf(const Processes& processes) {
  double sum = 0;
  for (const Process* process : processes) sum += process->CpuSeconds();
  return sum;
}

}  // namespace

Processes ProcessesOf(std::span<const Child> children) {
  Processes processes;
  for (const Child& child : children) processes.push_back(&child.process());
  return processes;
}

Processes ProcessesOf(std::span<const Process> list) {
  Processes processes;
  for (const Process& process : list) processes.push_back(&process);
  return processes;
}

CostMeter::CostMeter(Processes near, Processes far)
    : near_(std::move(near)),
      far_(std::move(far)),
      near_cpu_s_(CpuOf(near_)),
      far_cpu_s_(CpuOf(far_)) {}

Cost CostMeter::Finish(uint64_t bytes, std::span<const Json> replies) const {
  Cost cost;
  cost.bytes = bytes;
  cost.near_cpu_s = CpuOf(near_) - near_cpu_s_;
  cost.far_cpu_s = CpuOf(far_) - far_cpu_s_;
  double begin = replies[0].at("begin");
  double end = replies[0].at("end");
  for (const Json& reply : replies) {
    begin = std::min(begin, reply.at("begin").get<double>());
    end = std::max(end, reply.at("end").get<double>());
  }
  cost.seconds = end - begin;
  return cost;
}

}  // namespace luwu::bench
