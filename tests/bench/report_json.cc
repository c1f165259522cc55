#include "tests/bench/report.h"
#include "tests/bench/samples.h"

namespace luwu::bench {
namespace {

using CostOf = const Cost& (*)(const TransferRound&);
using LatencyOf = const Latency& (*)(const TransferRound&);

Json CostJson(const Report& report, CostOf cost) {
  const auto per_gb = [](double cpu_s, const Cost& c) {
    return cpu_s / (static_cast<double>(c.bytes) * c.directions / 1e9);
  };
  return {
      {"gb_per_s", report.Median([&](const TransferRound& r) { return cost(r).gb_per_s(); })},
      {"cpu_s_per_gb",
       report.Median([&](const TransferRound& r) { return cost(r).cpu_s_per_gb(); })},
      {"near_cpu_s_per_gb",
       report.Median([&](const TransferRound& r) { return per_gb(cost(r).near_cpu_s, cost(r)); })},
      {"far_cpu_s_per_gb",
       report.Median([&](const TransferRound& r) { return per_gb(cost(r).far_cpu_s, cost(r)); })}};
}

Json LatencyJson(const Report& report, LatencyOf latency) {
  return {{"p50_us", report.Median([&](const TransferRound& r) { return latency(r).p50_us; })},
          {"p99_us", report.Median([&](const TransferRound& r) { return latency(r).p99_us; })}};
}

Json RatiosJson(const Report& report) {
  const auto ratio = [&report](CostOf a, CostOf b) {
    return report.Median([&](const TransferRound& r) { return a(r).gb_per_s() / b(r).gb_per_s(); });
  };
  using R = TransferRound;
  const CostOf push = [](const R& r) -> const Cost& { return r.push; };
  const CostOf update = [](const R& r) -> const Cost& { return r.push_and_update; };
  const CostOf fetch = [](const R& r) -> const Cost& { return r.fetch; };
  const CostOf both = [](const R& r) -> const Cost& { return r.both_ways; };
  const CostOf copy = [](const R& r) -> const Cost& { return r.memcpy; };
  const CostOf ring_parked = [](const R& r) -> const Cost& { return r.ring_parked; };
  const CostOf ring_update = [](const R& r) -> const Cost& { return r.ring_update; };
  const CostOf ring = [](const R& r) -> const Cost& { return r.ring; };
  const CostOf one_way = [](const R& r) -> const Cost& { return r.socket_one_way; };
  const CostOf both_ways = [](const R& r) -> const Cost& { return r.socket_both_ways; };
  return {{"push_to_ring_parked", ratio(push, ring_parked)},
          {"push_to_ring", ratio(push, ring)},
          {"push_and_update_to_ring", ratio(update, ring)},
          {"push_and_update_to_ring_update", ratio(update, ring_update)},
          {"push_to_memcpy", ratio(push, copy)},
          {"fetch_to_memcpy", ratio(fetch, copy)},
          {"push_to_socket", ratio(push, one_way)},
          {"fetch_to_socket", ratio(fetch, one_way)},
          {"both_ways_to_socket_both_ways", ratio(both, both_ways)},
          {"small_fetch_to_grpc_echo",
           report.Median([](const R& r) { return r.small_fetch.p50_us / r.echo.p50_us; })}};
}

Json TransfersJson(const Report& report) {
  using R = TransferRound;
  Json json = {
      {"rounds", report.rounds.size()},
      {"bytes_per_worker", report.rounds[0].push.bytes / report.options.workers},
      {"yardsticks",
       {{"memcpy", CostJson(report, [](const R& r) -> const Cost& { return r.memcpy; })},
        {"ring_parked", CostJson(report, [](const R& r) -> const Cost& { return r.ring_parked; })},
        {"ring", CostJson(report, [](const R& r) -> const Cost& { return r.ring; })},
        {"ring_update", CostJson(report, [](const R& r) -> const Cost& { return r.ring_update; })},
        {"socket", CostJson(report, [](const R& r) -> const Cost& { return r.socket_one_way; })},
        {"socket_both_ways",
         CostJson(report, [](const R& r) -> const Cost& { return r.socket_both_ways; })},
        {"grpc_echo", LatencyJson(report, [](const R& r) -> const Latency& { return r.echo; })}}},
      {"push", CostJson(report, [](const R& r) -> const Cost& { return r.push; })},
      {"push_and_update",
       CostJson(report, [](const R& r) -> const Cost& { return r.push_and_update; })},
      {"fetch", CostJson(report, [](const R& r) -> const Cost& { return r.fetch; })},
      {"both_ways", CostJson(report, [](const R& r) -> const Cost& { return r.both_ways; })},
      {"small_fetch",
       LatencyJson(report, [](const R& r) -> const Latency& { return r.small_fetch; })},
      {"ratios", RatiosJson(report)}};
  if (report.has_view) {
    const double layers = static_cast<double>(report.transfer_layers);
    json["view"] = {
        {"us_per_layer", report.Median([&](const R& r) { return 1e6 * r.view.seconds / layers; })},
        {"same_addresses",
         report.Median([](const R& r) { return r.view_same_addresses ? 1.0 : 0.0; }) == 1}};
  }
  return json;
}

Json StepJson(const Report& report, const StepSample& step) {
  return {{"step_s", step.seconds},
          {"fetched_bytes", step.fetched_bytes},
          {"pushed_bytes", step.pushed_bytes},
          {"fetch_gb_per_s", step.fetch_gb_per_s()},
          {"push_gb_per_s", step.push_gb_per_s()},
          {"fetch_wait_s", step.fetch_wait_s},
          {"updated_elements", step.updates.elements},
          {"update_thread_s", step.updates.thread_seconds_sum},
          {"update_gb_per_s_per_thread", report.UpdateGbPerThreadSecond(step)},
          {"exposed_update_s", step.exposed_update_s},
          {"update_hidden_share", step.hidden_share()},
          {"worker_cpu_s", step.worker_cpu_s},
          {"daemon_cpu_s", step.daemon_cpu_s},
          {"small_fetch_p50_us", step.small_fetch.p50_us},
          {"small_fetch_p99_us", step.small_fetch.p99_us}};
}

// Every number of a step as the median over the steps.
Json MedianStepJson(const Json& each) {
  Json median = Json::object();
  for (const auto& [key, unused] : each.at(0).items()) {
    std::vector<double> values;
    for (const Json& step : each) values.push_back(step.at(key));
    median[key] = Median(values);
  }
  return median;
}

Json OptionsJson(const Report& report) {
  const TrainOptions& options = report.options;
  return {{"params", report.params},
          {"layers", options.layers.size()},
          {"workers", options.workers},
          {"daemons", options.daemons},
          {"transport", options.transport},
          {"wire_dtype", options.wire_dtype},
          {"compute_ms", options.compute_ms},
          {"steps", options.steps},
          {"rounds", options.rounds},
          {"keep_undo_state", options.keep_undo_state},
          {"update_threads", options.update_threads},
          {"connections", options.connections}};
}

}  // namespace

Json ReportJson(const Report& report) {
  Json json = {{"bench", "train"},
               {"machine",
                {{"cpus", report.machine.cpus},
                 {"cpu_model", report.machine.cpu_model},
                 {"memory_bytes", report.machine.memory_bytes},
                 {"kernel", report.machine.kernel},
                 {"others_cpu_share", report.others_cpu_share}}},
               {"options", OptionsJson(report)}};
  if (!report.rounds.empty()) json["transfers"] = TransfersJson(report);
  if (!report.steps.empty()) {
    Json each = Json::array();
    for (const StepSample& step : report.steps) each.push_back(StepJson(report, step));
    json["steps"] = {{"median", MedianStepJson(each)}, {"each", each}};
  }
  json["aims"] = Json::array();
  for (const Aim& aim : AimsOf(report)) {
    json["aims"].push_back({{"name", aim.name},
                            {"value", aim.value},
                            {aim.at_least ? "at_least" : "at_most", aim.bound},
                            {"met", aim.met()}});
  }
  return json;
}

}  // namespace luwu::bench
