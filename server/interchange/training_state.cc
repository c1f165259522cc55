#include "server/interchange/training_state.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>

#include "common/base/check.h"
#include "common/tensor/placement.h"
#include "server/interchange/safetensors_header.h"

namespace luwu::interchange {
namespace {

constexpr char kStep[] = "luwu.step";
constexpr char kExport[] = "luwu.export";
constexpr char kOptimizer[] = "luwu.optimizer";
constexpr char kShardElements[] = "luwu.shard_elements";
constexpr char kLossScale[] = "luwu.loss_scale";
constexpr char kFiniteRun[] = "luwu.finite_run";
constexpr char kApplied[] = "luwu.applied";

// Everything that the stored state depends on.
std::string OptimizerText(const OptimizerSpec& spec) {
  return fmt::format(
      "kind={} sgd_momentum={} amsgrad={} state_precision={} master_format={} rounding_seed={} "
      "initial_accumulator={}",
      OptimizerName(spec.kind), spec.sgd_momentum, spec.amsgrad,
      StatePrecisionName(spec.state_precision), MasterFormatName(spec.master_format),
      spec.rounding_seed, spec.initial_accumulator);
}

// "3*1000,4;3" : layers apart by ';', shards by ',', '*' before how often a number is repeated.
std::string AppliedText(const std::vector<std::vector<uint64_t>>& applied) {
  std::string text;
  for (size_t layer = 0; layer < applied.size(); ++layer) {
    if (layer > 0) text += ';';
    const std::vector<uint64_t>& counts = applied[layer];
    for (size_t i = 0; i < counts.size();) {
      size_t next = i;
      while (next < counts.size() && counts[next] == counts[i]) ++next;
      if (i > 0) text += ',';
      text +=
          next - i == 1 ? fmt::format("{}", counts[i]) : fmt::format("{}*{}", counts[i], next - i);
      i = next;
    }
  }
  return text;
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Takes what is before `separator`, and the separator.
std::string_view TakeUntil(std::string_view* text, char separator) {
  const size_t at = text->find(separator);
  const std::string_view taken = text->substr(0, at);
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + 1);
  return taken;
}

// The counts of one layer of `shards` shards; nothing when they are other ones.
std::optional<std::vector<uint64_t>> ParseLayer(std::string_view text, uint64_t shards) {
  std::vector<uint64_t> counts;
  while (!text.empty()) {
    std::string_view run = TakeUntil(&text, ',');
    const std::optional<uint64_t> count = ParseNumber(TakeUntil(&run, '*'));
    const std::optional<uint64_t> times = run.empty() ? 1 : ParseNumber(run);
    if (!count || !times || *times > shards - counts.size()) return std::nullopt;
    counts.insert(counts.end(), *times, *count);
  }
  if (counts.size() != shards) return std::nullopt;
  return counts;
}

class StateParser {
 public:
  StateParser(const Metadata& metadata, const std::string& path)
      : metadata_(metadata), path_(path) {}

  StatusOr<std::string> Text(const char* key) const {
    const auto found = metadata_.find(key);
    if (found != metadata_.end()) return found->second;
    return Error(ErrorCode::kCorrupt,
                 "'{}' has no {} in its metadata: it was not exported with optimizer state", path_,
                 key);
  }
  StatusOr<uint64_t> Number(const char* key, uint64_t max) const {
    ASSIGN_OR_RETURN(const std::string text, Text(key));
    const std::optional<uint64_t> value = ParseNumber(text);
    if (value && *value <= max) return *value;
    return Bad(key, text);
  }
  Status Bad(const char* key, const std::string& text) const {
    return Error(ErrorCode::kCorrupt, "'{}' has the impossible {} {} in its metadata", path_, key,
                 QuotedName(text));
  }
  Status MustEqual(const char* key, const std::string& wanted) const {
    ASSIGN_OR_RETURN(const std::string text, Text(key));
    if (text == wanted) return OkStatus();
    return Error(ErrorCode::kSchemaMismatch,
                 "the optimizer state in '{}' has {} {}, the job '{}': state can go on in a job "
                 "with the same only",
                 path_, key, QuotedName(text), wanted);
  }

 private:
  const Metadata& metadata_;
  const std::string& path_;
};

StatusOr<std::vector<std::vector<uint64_t>>> ParseApplied(const JobSpec& spec,
                                                          const StateParser& parser) {
  ASSIGN_OR_RETURN(const std::string text, parser.Text(kApplied));
  std::string_view left = text;
  std::vector<std::vector<uint64_t>> applied;
  for (const LayerSpec& layer : spec.layers) {
    std::optional<std::vector<uint64_t>> counts =
        ParseLayer(TakeUntil(&left, ';'), ShardCount(layer.elements, spec.shard_elements));
    if (!counts) return parser.Bad(kApplied, text);
    applied.push_back(*std::move(counts));
  }
  if (!left.empty()) return parser.Bad(kApplied, text);
  return applied;
}

}  // namespace

Metadata CommonMetadata(uint64_t step, const std::string& export_id) {
  return {{"format", "pt"}, {kExport, export_id}, {kStep, fmt::format("{}", step)}};
}

Status CheckOneExport(const NamedMetadata& model, const NamedMetadata& optimizer) {
  for (const char* key : {kExport, kStep}) {
    for (const NamedMetadata* files : {&model, &optimizer}) {
      if (files->metadata.contains(key)) continue;
      return Error(ErrorCode::kCorrupt,
                   "'{}' has no {} in its metadata: masters and optimizer state are not known to "
                   "be of one export, and are not imported together",
                   files->path, key);
    }
    const std::string& one = model.metadata.at(key);
    const std::string& other = optimizer.metadata.at(key);
    if (one == other) continue;
    return Error(ErrorCode::kCorrupt,
                 "'{}' and '{}' are of different exports: {} is {} and {}. An export that was to "
                 "replace another one was killed, or files were put together; export again",
                 model.path, optimizer.path, key, QuotedName(one), QuotedName(other));
  }
  return OkStatus();
}

Metadata StateMetadata(const JobSpec& spec, const TrainingState& state) {
  return {{kOptimizer, OptimizerText(spec.optimizer)},
          {kShardElements, fmt::format("{}", spec.shard_elements)},
          {kLossScale, fmt::format("{}", state.loss_scale)},
          {kFiniteRun, fmt::format("{}", state.finite_run)},
          {kApplied, AppliedText(state.applied)}};
}

StatusOr<TrainingState> ParseTrainingState(const JobSpec& spec, const Metadata& metadata,
                                           const std::string& path) {
  const StateParser parser(metadata, path);
  RETURN_IF_ERROR(parser.MustEqual(kOptimizer, OptimizerText(spec.optimizer)));
  RETURN_IF_ERROR(parser.MustEqual(kShardElements, fmt::format("{}", spec.shard_elements)));
  TrainingState state;
  ASSIGN_OR_RETURN(state.step, parser.Number(kStep, ~uint64_t{0} - 1));
  ASSIGN_OR_RETURN(const uint64_t run, parser.Number(kFiniteRun, ~uint32_t{0}));
  state.finite_run = static_cast<uint32_t>(run);
  ASSIGN_OR_RETURN(const std::string scale, parser.Text(kLossScale));
  const auto [end, error] =
      std::from_chars(scale.data(), scale.data() + scale.size(), state.loss_scale);
  if (error != std::errc() || end != scale.data() + scale.size() ||
      !std::isfinite(state.loss_scale) || state.loss_scale <= 0) {
    return parser.Bad(kLossScale, scale);
  }
  ASSIGN_OR_RETURN(state.applied, ParseApplied(spec, parser));
  return state;
}

}  // namespace luwu::interchange
