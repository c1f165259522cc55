// Runs one case: the engine over all shards, or the stream that makes the same loads and stores, on
// the case's threads, which live as long as the runner.
#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "tests/bench/optimizer/case_memory.h"
#include "tests/bench/optimizer/stream.h"

namespace luwu::bench {

struct PassCost {
  double seconds = 0;
  uint64_t page_faults = 0;  // of the worker threads, during the pass
  uint64_t allocations = 0;  // likewise: calls of operator new
};

class CaseRunner {
 public:
  CaseRunner(const BenchCase& bench_case, const std::vector<CaseShard>& shards);
  ~CaseRunner();

  PassCost Engine();
  PassCost StreamPass(const StreamStyle& style);
  // The styles that make sense for the case.
  std::vector<StreamStyle> Styles() const;
  // Bytes that the case reads and writes for each parameter.
  double bytes_per_parameter() const;

 private:
  using ShardWork = std::function<void(const CaseShard&)>;
  PassCost RunPass(const ShardWork& work);
  void Loop(uint32_t thread);
  void UpdateShard(const CaseShard& shard) const;
  void StreamOver(const CaseShard& shard, const StreamStyle& style) const;

  const BenchCase& case_;
  const std::vector<CaseShard>& shards_;
  const HyperParameters hyper_;
  uint64_t applied_ = 0;
  bool swapped_ = false;  // which generation and which served buffer is read

  std::barrier<> start_;
  std::barrier<> finish_;
  const ShardWork* work_ = nullptr;  // null: the threads end
  std::vector<PassCost> costs_;      // by thread
  std::vector<std::thread> threads_;
};

}  // namespace luwu::bench
