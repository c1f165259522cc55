#include "tests/bench/optimizer/case_runner.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "common/base/check.h"
#include "server/optim/kernel_choice.h"
#include "tests/fakes/allocation_counter.h"

namespace luwu::bench {
namespace {

// As the daemon's update threads call it (server/step/shard_updater.cc).
constexpr uint64_t kBlockElements = 16 * 1024;

uint64_t ThreadPageFaults() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

// Whole bytes of 64 elements, without the few of the blocks' scales.
uint64_t BytesOf64(optim::StateFormat format) {
  switch (format) {
    case optim::StateFormat::kFloat32:
      return 256;
    case optim::StateFormat::kBFloat16:
    case optim::StateFormat::kLow16:
      return 128;
    case optim::StateFormat::kSigned8:
    case optim::StateFormat::kUnsigned8:
      return 64;
  }
  return 0;
}

}  // namespace

CaseRunner::CaseRunner(const BenchCase& bench_case, const std::vector<CaseShard>& shards)
    : case_(bench_case),
      shards_(shards),
      hyper_(BenchHyper(bench_case.optimizer.kind)),
      start_(bench_case.threads + 1),
      finish_(bench_case.threads + 1),
      costs_(bench_case.threads) {
  optim::ChooseKernels(bench_case.variant == KernelVariant::kPortable
                           ? optim::KernelChoice::kPortable
                           : optim::KernelChoice::kBest);
  for (uint32_t i = 0; i < bench_case.threads; ++i) {
    threads_.emplace_back([this, i] { Loop(i); });
  }
}

CaseRunner::~CaseRunner() {
  work_ = nullptr;
  start_.arrive_and_wait();
  for (std::thread& thread : threads_) thread.join();
  optim::ChooseKernels(optim::KernelChoice::kBest);
}

void CaseRunner::Loop(uint32_t thread) {
  const size_t first = shards_.size() * thread / costs_.size();
  const size_t end = shards_.size() * (thread + 1) / costs_.size();
  for (;;) {
    start_.arrive_and_wait();
    if (work_ == nullptr) return;
    const uint64_t faults = ThreadPageFaults();
    testing::StartCountingAllocations();
    for (size_t i = first; i < end; ++i) (*work_)(shards_[i]);
    costs_[thread].allocations = testing::StopCountingAllocations();
    costs_[thread].page_faults = ThreadPageFaults() - faults;
    finish_.arrive_and_wait();
  }
}

PassCost CaseRunner::RunPass(const ShardWork& work) {
  work_ = &work;
  const auto begin = std::chrono::steady_clock::now();
  start_.arrive_and_wait();
  finish_.arrive_and_wait();
  PassCost cost;
  cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const PassCost& one : costs_) {
    cost.allocations += one.allocations;
    cost.page_faults += one.page_faults;
  }
  return cost;
}

PassCost CaseRunner::Engine() {
  const PassCost cost = RunPass([this](const CaseShard& shard) { UpdateShard(shard); });
  ++applied_;
  swapped_ = !swapped_;
  return cost;
}

PassCost CaseRunner::StreamPass(const StreamStyle& style) {
  return RunPass([this, &style](const CaseShard& shard) { StreamOver(shard, style); });
}

void CaseRunner::UpdateShard(const CaseShard& shard) const {
  std::array<optim::GradientSource, 64> sources;
  LUWU_CHECK(shard.gradients.size() <= sources.size(), "at most 64 workers");
  const uint64_t wire_bytes = DTypeBytes(case_.gradient_dtype);
  for (uint64_t first = 0; first < kBenchShardElements; first += kBlockElements) {
    for (size_t k = 0; k < shard.gradients.size(); ++k) {
      sources[k] = {shard.gradients[k] + first * wire_bytes, case_.gradient_dtype};
    }
    const std::span gradients(sources.data(), shard.gradients.size());
    std::byte* held = shard.held == nullptr ? nullptr : shard.held + first * sizeof(float);
    if (case_.hold_only) {
      optim::HoldSum({.first = first,
                      .count = kBlockElements,
                      .gradients = gradients,
                      .gradient_scale = 1,
                      .held = held,
                      .held_dtype = DType::kFloat32});
      continue;
    }
    optim::UpdateRange range;
    range.first = first;
    range.count = kBlockElements;
    range.shard_elements = kBenchShardElements;
    range.job_element = shard.first_element + first;
    range.gradients = gradients;
    range.in = swapped_ ? shard.out : shard.in;
    range.out = swapped_ ? shard.in : shard.out;
    range.served_in = swapped_ ? shard.served_next : shard.served;
    range.served = swapped_ ? shard.served : shard.served_next;
    range.served_dtype = case_.served_dtype;
    range.stream_served = true;  // as the stream may
    range.held = held;
    optim::ApplyUpdate(case_.optimizer, hyper_, applied_, range);
  }
}

void CaseRunner::StreamOver(const CaseShard& shard, const StreamStyle& style) const {
  const optim::StateLayout layout = optim::LayoutOf(case_.optimizer);
  StreamShard all;
  all.count = kBenchShardElements;
  all.sources = shard.gradients;
  all.source_bytes = 64 * DTypeBytes(case_.gradient_dtype);
  if (case_.hold_only) {
    all.served = shard.held;
    all.served_bytes = 64 * sizeof(float);
    return Stream(all, style);
  }
  const bool split = case_.optimizer.master_format == MasterFormat::kSplit;
  for (uint32_t k = 0; k < layout.count; ++k) {
    all.in[all.states] = shard.in.data[k];
    all.out[all.states] = shard.out.data[k];
    all.state_bytes[all.states++] = BytesOf64(layout.formats[k]);
  }
  all.served = split ? shard.served_next : shard.served;
  all.served_bytes = 64 * DTypeBytes(case_.served_dtype);
  std::vector<const std::byte*> sources;
  if (split) {  // the upper halves of the masters are read from the other served copy
    LUWU_CHECK(all.source_bytes == all.served_bytes, "read like one more source");
    sources.assign(shard.gradients.begin(), shard.gradients.end());
    sources.push_back(shard.served);
    all.sources = sources;
  }
  all.held = shard.held;
  Stream(all, style);
}

std::vector<StreamStyle> CaseRunner::Styles() const {
  std::vector<StreamStyle> styles;
  for (const uint32_t lines : {0U, 16U}) {
    for (const bool served : {false, true}) {
      styles.push_back(
          {.stream_state = !case_.in_place, .stream_served = served, .prefetch_lines = lines});
    }
  }
  return styles;
}

double CaseRunner::bytes_per_parameter() const {
  const double gradients =
      static_cast<double>(case_.workers) * static_cast<double>(DTypeBytes(case_.gradient_dtype));
  if (case_.hold_only) return gradients + 4;
  const optim::StateLayout layout = optim::LayoutOf(case_.optimizer);
  double state = 0;
  for (uint32_t k = 0; k < layout.count; ++k) {
    state += 2 * static_cast<double>(BytesOf64(layout.formats[k])) / 64;
  }
  const double served = static_cast<double>(DTypeBytes(case_.served_dtype)) *
                        (case_.optimizer.master_format == MasterFormat::kSplit ? 2 : 1);
  return gradients + state + served + (case_.hold ? 4 : 0);
}

}  // namespace luwu::bench
