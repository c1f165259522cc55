#include "tests/bench/optimizer/bench_case.h"

namespace luwu::bench {
namespace {

OptimizerSpec Spec(OptimizerKind kind) { return {.kind = kind}; }

// A name for every optimizer and every way to keep its state.
struct NamedSpec {
  std::string name;
  OptimizerSpec spec;
};

std::vector<NamedSpec> AllOptimizers() {
  std::vector<NamedSpec> all = {{"adamw", Spec(OptimizerKind::kAdamW)},
                                {"adam", Spec(OptimizerKind::kAdam)},
                                {"sgd", Spec(OptimizerKind::kSgd)},
                                {"sgd momentum", Spec(OptimizerKind::kSgd)},
                                {"lion", Spec(OptimizerKind::kLion)},
                                {"adagrad", Spec(OptimizerKind::kAdagrad)},
                                {"adamw amsgrad", Spec(OptimizerKind::kAdamW)}};
  all[3].spec.sgd_momentum = true;
  all[6].spec.amsgrad = true;
  return all;
}

std::vector<NamedSpec> AllFormats() {
  const std::vector<NamedSpec> optimizers = AllOptimizers();
  std::vector<NamedSpec> all;
  for (const auto precision :
       {StatePrecision::kFloat32, StatePrecision::kBFloat16, StatePrecision::kBlockwise8}) {
    for (const auto master : {MasterFormat::kFloat32, MasterFormat::kSplit}) {
      for (NamedSpec one : optimizers) {
        one.spec.state_precision = precision;
        one.spec.master_format = master;
        if (!ValidateOptimizerSpec(one.spec).ok()) continue;
        if (precision != StatePrecision::kFloat32 && one.name == "sgd") continue;  // no such state
        one.name = fmt::format("{}, {} state, {} master", one.name, StatePrecisionName(precision),
                               MasterFormatName(master));
        all.push_back(one);
      }
    }
  }
  return all;
}

void AddWorkers(const OptimizerBenchOptions& options, std::vector<BenchCase>* cases) {
  for (const bool in_place : {true, false}) {
    for (const uint32_t workers : options.workers) {
      for (const uint32_t threads : options.threads) {
        cases->push_back({.name = fmt::format("adamw, {} workers, {}", workers,
                                              in_place ? "in place" : "second generation"),
                          .optimizer = Spec(OptimizerKind::kAdamW),
                          .workers = workers,
                          .threads = threads,
                          .in_place = in_place,
                          .aim = workers <= 2   ? 0.92
                                 : workers <= 8 ? 0.85
                                                : 0});
      }
    }
  }
}

void AddOptimizers(const OptimizerBenchOptions& options, std::vector<BenchCase>* cases) {
  for (const NamedSpec& one : AllFormats()) {
    cases->push_back(
        {.name = one.name, .optimizer = one.spec, .threads = options.threads.back(), .aim = 0.85});
  }
  for (const DType gradient : {DType::kFloat32, DType::kFloat16}) {
    cases->push_back(
        {.name = fmt::format("adamw, {} gradients and served copy", DTypeName(gradient)),
         .optimizer = Spec(OptimizerKind::kAdamW),
         .gradient_dtype = gradient,
         .served_dtype = gradient,
         .threads = options.threads.back(),
         .aim = 0.85});
  }
}

void AddModes(const OptimizerBenchOptions& options, std::vector<BenchCase>* cases) {
  const BenchCase base = {.name = "",
                          .optimizer = Spec(OptimizerKind::kAdamW),
                          .workers = 2,
                          .threads = options.threads.back(),
                          .in_place = false};
  cases->push_back(base);
  cases->back().name = "adamw, 2 workers, immediate with undo";
  cases->push_back(base);
  cases->back().name = "adamw, 2 workers, speculative (sum held too)";
  cases->back().hold = true;
  cases->push_back(base);
  cases->back().name = "deferred, first pass: hold and norm, 2 workers";
  cases->back().hold_only = true;
  cases->push_back(base);
  cases->back().name = "deferred, second pass: fp32 sum, in place";
  cases->back().workers = 1;
  cases->back().gradient_dtype = DType::kFloat32;
  cases->back().in_place = true;
}

void AddPortable(const OptimizerBenchOptions& options, std::vector<BenchCase>* cases) {
  for (const NamedSpec& one : AllOptimizers()) {
    cases->push_back({.name = one.name + ", portable kernel",
                      .optimizer = one.spec,
                      .threads = options.threads.back(),
                      .variant = KernelVariant::kPortable,
                      .aim = 0.6});
  }
}

}  // namespace

StatusOr<std::vector<BenchCase>> MakeCases(const OptimizerBenchOptions& options) {
  std::vector<BenchCase> cases;
  const bool all = options.cases == "all";
  if (all || options.cases == "workers") AddWorkers(options, &cases);
  if (all || options.cases == "optimizers") AddOptimizers(options, &cases);
  if (all || options.cases == "modes") AddModes(options, &cases);
  if (all || options.cases == "portable") AddPortable(options, &cases);
  if (!cases.empty() || options.cases == "none") return cases;
  return Error(ErrorCode::kInvalidArgument,
               "cases '{}'; choose all, workers, optimizers, modes, portable or none",
               options.cases);
}

HyperParameters BenchHyper(OptimizerKind kind) {
  HyperParameters hyper = {.lr = 1e-4, .weight_decay = 0.01};
  if (kind == OptimizerKind::kSgd) {
    hyper.momentum = 0;
    return hyper;
  }
  hyper.beta1 = 0.9;
  hyper.beta2 = kind == OptimizerKind::kLion ? 0.99 : 0.999;
  hyper.eps = 1e-8;
  return hyper;
}

}  // namespace luwu::bench
