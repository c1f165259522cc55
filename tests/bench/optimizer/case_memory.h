// The memory of a case, laid out as a daemon lays it out: state shard by shard, generation by
// generation, array by array; each worker's gradients in slots of their own. One block for all
// cases, mapped and touched once, since fresh pages would be what is measured.
#pragma once

#include <vector>

#include "common/base/memory.h"
#include "server/optim/optimizer.h"
#include "tests/bench/optimizer/bench_case.h"

namespace luwu::bench {

inline constexpr uint64_t kBenchShardElements = 1 << 20;

struct CaseShard {
  uint64_t first_element = 0;  // in the job
  optim::StateArrays in, out;
  std::vector<const std::byte*> gradients;  // by worker
  std::byte* served = nullptr;
  std::byte* served_next = nullptr;  // the other version; the same when the master is not split
  std::byte* held = nullptr;
};

class CaseMemory {
 public:
  // Enough for the largest of `cases` at `params` parameters.
  static StatusOr<CaseMemory> Create(const std::vector<BenchCase>& cases, uint64_t params);

  // Lays out and fills the memory for a case; pointers are good until the next call.
  const std::vector<CaseShard>& Prepare(const BenchCase& bench_case);

 private:
  Mapping memory_;
  uint64_t shards_ = 0;
  std::vector<CaseShard> layout_;
};

}  // namespace luwu::bench
