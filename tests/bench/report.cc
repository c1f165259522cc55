#include "tests/bench/report.h"

#include <algorithm>

#include "tests/bench/samples.h"

namespace luwu::bench {
namespace {

constexpr double kShmPushOfRing = 0.9;
constexpr double kShmPushCpuSecondsPerGb = 0.25;
constexpr double kShmSmallFetchUs = 10;
constexpr double kTcpOfSocket = 0.85;

double Ratio(const Cost& a, const Cost& b) { return a.gb_per_s() / b.gb_per_s(); }

std::vector<Aim> ShmAims(const Report& report) {
  return {
      {"shm push, parked, GB/s / ring with nobody reading",
       report.Median([](const TransferRound& r) { return Ratio(r.push, r.ring_parked); }),
       kShmPushOfRing, true},
      {"shm push, SGD in place, GB/s / ring with SGD in place",
       report.Median(
           [](const TransferRound& r) { return Ratio(r.push_and_update, r.ring_update); }),
       kShmPushOfRing, true},
      {"shm push, parked, GB/s / ring read in place",
       report.Median([](const TransferRound& r) { return Ratio(r.push, r.ring); }), kShmPushOfRing,
       true},
      {"shm push, SGD in place, GB/s / ring read in place",
       report.Median([](const TransferRound& r) { return Ratio(r.push_and_update, r.ring); }),
       kShmPushOfRing, true},
      {"shm push, parked, CPU s/GB, both ends",
       report.Median([](const TransferRound& r) { return r.push.cpu_s_per_gb(); }),
       kShmPushCpuSecondsPerGb, false},
      {"shm push, SGD in place, CPU s/GB, both ends",
       report.Median([](const TransferRound& r) { return r.push_and_update.cpu_s_per_gb(); }),
       kShmPushCpuSecondsPerGb, false},
      {"shm 4 KiB fetch p50 us",
       report.Median([](const TransferRound& r) { return r.small_fetch.p50_us; }), kShmSmallFetchUs,
       false},
      {"shm views at the same addresses each time (1: no copy)",
       report.Median([](const TransferRound& r) { return r.view_same_addresses ? 1.0 : 0.0; }), 1,
       true},
  };
}

std::vector<Aim> TcpAims(const Report& report) {
  return {
      {"tcp push GB/s / socket GB/s",
       report.Median([](const TransferRound& r) { return Ratio(r.push, r.socket_one_way); }),
       kTcpOfSocket, true},
      {"tcp fetch GB/s / socket GB/s",
       report.Median([](const TransferRound& r) { return Ratio(r.fetch, r.socket_one_way); }),
       kTcpOfSocket, true},
      {"tcp both at once GB/s each way / socket both ways",
       report.Median([](const TransferRound& r) { return Ratio(r.both_ways, r.socket_both_ways); }),
       kTcpOfSocket, true},
      {"tcp 4 KiB fetch p50 / gRPC echo p50",
       report.Median([](const TransferRound& r) { return r.small_fetch.p50_us / r.echo.p50_us; }),
       1, false},
  };
}

}  // namespace

double StepSample::fetch_gb_per_s() const {
  return static_cast<double>(fetched_bytes) / seconds / 1e9;
}

double StepSample::push_gb_per_s() const {
  return static_cast<double>(pushed_bytes) / seconds / 1e9;
}

double StepSample::hidden_share() const {
  if (updates.alone_seconds_max <= 0) return 0;
  return std::clamp(1 - exposed_update_s / updates.alone_seconds_max, 0.0, 1.0);
}

double Report::Median(const std::function<double(const TransferRound&)>& value) const {
  std::vector<double> samples;
  for (const TransferRound& round : rounds) samples.push_back(value(round));
  return bench::Median(samples);
}

double Report::StepMedian(const std::function<double(const StepSample&)>& value) const {
  std::vector<double> samples;
  for (const StepSample& step : steps) samples.push_back(value(step));
  return bench::Median(samples);
}

double Report::UpdateGbPerThreadSecond(const StepSample& step) const {
  // AdamW: master and two moments in and out, every worker's gradient in, the served copy out.
  const uint64_t wire = WireBytes(options.wire_dtype);
  const double bytes_each = static_cast<double>(24 + options.workers * wire + wire);
  if (step.updates.thread_seconds_sum <= 0) return 0;
  return bytes_each * static_cast<double>(step.updates.elements) / step.updates.thread_seconds_sum /
         1e9;
}

std::vector<Aim> AimsOf(const Report& report) {
  if (report.rounds.empty()) return {};
  if (report.options.transport == "shm") return ShmAims(report);
  return report.options.transport == "tcp" ? TcpAims(report) : std::vector<Aim>{};
}

}  // namespace luwu::bench
