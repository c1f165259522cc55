// The cases of `luwu-bench optimizer`: which update, by how many workers and threads, on which
// kernel variant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"

namespace luwu::bench {

struct OptimizerBenchOptions {
  uint64_t params = 100'000'000;
  std::vector<uint32_t> threads = {1, 2};
  std::vector<uint32_t> workers = {1, 2, 4, 8};
  uint64_t rounds = 7;
  std::string cases = "all";  // "workers", "optimizers", "modes", "portable", "none"
  bool daemon = true;         // the whole daemon path, too
  std::string luwud;
};

enum class KernelVariant : uint8_t { kBest, kPortable };

struct BenchCase {
  std::string name;
  OptimizerSpec optimizer;
  DType gradient_dtype = DType::kBFloat16;
  DType served_dtype = DType::kBFloat16;
  uint32_t workers = 1;
  uint32_t threads = 1;
  bool in_place = true;    // else into a second generation
  bool hold = false;       // the sum is written too, as speculative mode does
  bool hold_only = false;  // deferred mode's first pass: sum, norm, nothing else
  KernelVariant variant = KernelVariant::kBest;
  double aim = 0;  // least ratio to the stream; 0: reported only
};

// kInvalidArgument for an unknown name in options.cases.
StatusOr<std::vector<BenchCase>> MakeCases(const OptimizerBenchOptions& options);

HyperParameters BenchHyper(OptimizerKind kind);

}  // namespace luwu::bench
