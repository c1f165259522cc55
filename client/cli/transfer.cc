#include "client/cli/transfer.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "client/cli/fleet.h"
#include "client/cli/table.h"
#include "common/rpc/job_spec_proto.h"
#include "common/rpc/status_json.h"

namespace luwu::cli {
namespace {

uint64_t NewOperation() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

// Whether two nodes have the same thing.
Status CompareParts(const Options& options, const v1::DescribeStateResponse& here,
                    const v1::DescribeStateResponse& there, const std::string& nodes) {
  const uint64_t step = here.state().step();
  const uint64_t other_step = there.state().step();
  if (!options.checkpoint.empty()) {
    if (step == other_step && here.point_epoch() == there.point_epoch()) return OkStatus();
    return Error(ErrorCode::kState,
                 "nodes {} have different checkpoints '{}' of job {}, of steps {} and {}: one was "
                 "made while a node was down. Delete it and make it again",
                 nodes, options.checkpoint, options.job, step, other_step);
  }
  if (here.epoch() != there.epoch()) {
    return Error(ErrorCode::kStaleEpoch,
                 "nodes {} have different jobs of the name {}; try again, or delete it", nodes,
                 options.job);
  }
  if (step == other_step && here.loaded() == there.loaded()) return OkStatus();
  return Error(ErrorCode::kState,
               "nodes {} have job {} at steps {} and {}: it is training. Do it while training is "
               "paused, or export a named checkpoint",
               nodes, options.job, step, other_step);
}

// All nodes' parts of the state of the job or checkpoint, put together; kState when they are not at
// one step.
StatusOr<v1::DescribeStateResponse> Describe(const Options& options, Fleet* fleet) {
  v1::DescribeStateRequest request;
  request.set_job(options.job);
  request.set_checkpoint(options.checkpoint);
  ASSIGN_OR_RETURN(auto parts, fleet->CallAll<v1::DescribeStateResponse>(
                                   fleet->short_ms(), [&](auto* stub, auto* context, auto* queue) {
                                     return stub->PrepareAsyncDescribeState(context, request,
                                                                            queue);
                                   }));
  v1::DescribeStateResponse whole = std::move(parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    const v1::DescribeStateResponse& part = parts[i];
    const std::string nodes =
        fmt::format("{} and {}", fleet->first().name, fleet->members()[i].name);
    RETURN_IF_ERROR(CompareParts(options, whole, part, nodes));
    for (int layer = 0; layer < part.state().layers_size(); ++layer) {
      v1::LayerUpdates* into = whole.mutable_state()->mutable_layers(layer);
      const v1::LayerUpdates& from = part.state().layers(layer);
      for (int shard = 0; shard < from.shards_size(); ++shard) {
        into->set_shards(shard, std::max(into->shards(shard), from.shards(shard)));
      }
    }
  }
  return whole;
}

// All nodes' shards; returns the bytes.
StatusOr<uint64_t> LoadFiles(const Options& options, uint64_t epoch, uint64_t operation,
                             Fleet* fleet) {
  v1::ImportRequest request;
  request.set_job(options.job);
  request.set_epoch(epoch);
  request.set_path(options.path);
  request.set_allow_missing(options.allow_missing);
  request.set_allow_unexpected(options.allow_unexpected);
  request.set_optimizer_state(options.optimizer_state);
  request.set_operation(operation);
  ASSIGN_OR_RETURN(const auto parts,
                   fleet->CallAllLong<v1::ImportResponse>(
                       "import", request.operation(), [&](auto* stub, auto* context, auto* queue) {
                         return stub->PrepareAsyncImport(context, request, queue);
                       }));
  uint64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes += parts[i].bytes();
    if (parts[i].fingerprint() == parts[0].fingerprint()) continue;
    return Error(ErrorCode::kSchemaMismatch,
                 "nodes {} and {} see different files at {}: put equal files there on all hosts, "
                 "and import again",
                 fleet->first().name, fleet->members()[i].name, options.path);
  }
  v1::FinishImportRequest finish;
  finish.set_job(options.job);
  finish.set_epoch(epoch);
  finish.set_operation(operation);
  finish.set_allow_missing(options.allow_missing);
  if (options.optimizer_state) *finish.mutable_state() = parts[0].state();
  ASSIGN_OR_RETURN(const auto finished,
                   fleet->CallAllLong<v1::FinishImportResponse>(
                       "finish", 0, [&](auto* stub, auto* context, auto* queue) {
                         return stub->PrepareAsyncFinishImport(context, finish, queue);
                       }));
  return bytes;
}

// What is not told ends by itself, later.
void AbandonImport(const Options& options, uint64_t epoch, uint64_t operation, Fleet* fleet) {
  fleet->IgnoreSignals();
  v1::AbandonImportRequest request;
  request.set_job(options.job);
  request.set_epoch(epoch);
  request.set_operation(operation);
  (void)fleet->CallAll<v1::AbandonImportResponse>(
      fleet->short_ms(), [&](auto* stub, auto* context, auto* queue) {
        return stub->PrepareAsyncAbandonImport(context, request, queue);
      });
}

StatusOr<uint64_t> RunImport(const Options& options, Fleet* fleet) {
  ASSIGN_OR_RETURN(const v1::DescribeStateResponse state, Describe(options, fleet));
  v1::BeginImportRequest begin;
  begin.set_job(options.job);
  begin.set_epoch(state.epoch());
  begin.set_operation(NewOperation());
  ASSIGN_OR_RETURN(
      const auto begun,
      fleet->CallFirst<v1::BeginImportResponse>([&](auto* stub, auto* context, auto* queue) {
        return stub->PrepareAsyncBeginImport(context, begin, queue);
      }));
  StatusOr<uint64_t> bytes = LoadFiles(options, state.epoch(), begin.operation(), fleet);
  if (!bytes.ok()) AbandonImport(options, state.epoch(), begin.operation(), fleet);
  return bytes;
}

struct Exported {
  uint64_t step = 0;
  uint64_t bytes = 0;
  std::vector<std::string> files;
};

StatusOr<Exported> WriteFiles(const Options& options, const v1::DescribeStateResponse& state,
                              const v1::BeginExportResponse& begun, Fleet* fleet) {
  v1::WriteExportRequest write;
  write.set_job(options.job);
  write.set_epoch(state.epoch());
  write.set_folder(options.path);
  write.set_draft(begun.draft());
  write.set_optimizer_state(options.optimizer_state);
  write.set_step(state.state().step());
  write.set_operation(begun.operation());
  write.set_checkpoint(options.checkpoint);
  write.set_point_epoch(state.point_epoch());
  ASSIGN_OR_RETURN(const auto parts,
                   fleet->CallAllLong<v1::WriteExportResponse>(
                       "export", write.operation(), [&](auto* stub, auto* context, auto* queue) {
                         return stub->PrepareAsyncWriteExport(context, write, queue);
                       }));
  Exported exported;
  exported.step = state.state().step();
  for (const v1::WriteExportResponse& part : parts) exported.bytes += part.bytes();
  if (exported.bytes != begun.bytes()) {
    return Error(ErrorCode::kInternal, "the nodes wrote {} bytes of {}", exported.bytes,
                 begun.bytes());
  }
  v1::FinishExportRequest finish;
  finish.set_folder(options.path);
  finish.set_draft(begun.draft());
  finish.set_overwrite(options.overwrite);
  ASSIGN_OR_RETURN(
      const auto finished,
      fleet->CallFirst<v1::FinishExportResponse>([&](auto* stub, auto* context, auto* queue) {
        return stub->PrepareAsyncFinishExport(context, finish, queue);
      }));
  exported.files.assign(finished.files().begin(), finished.files().end());
  return exported;
}

void Abandon(const std::string& folder, const v1::BeginExportResponse& begun, Fleet* fleet) {
  fleet->IgnoreSignals();
  v1::AbandonExportRequest request;
  request.set_folder(folder);
  request.set_draft(begun.draft());
  request.set_made_folder(begun.made_folder());
  const auto done =
      fleet->CallFirst<v1::AbandonExportResponse>([&](auto* stub, auto* context, auto* queue) {
        return stub->PrepareAsyncAbandonExport(context, request, queue);
      });
  if (done.ok()) return;
  fmt::print(stderr, "luwuctl: {}/{} is left and may be removed: {}\n", Printable(folder),
             begun.draft(), Printable(MessageOf(done.status())));
}

StatusOr<Exported> RunExport(const Options& options, Fleet* fleet) {
  ASSIGN_OR_RETURN(const v1::DescribeStateResponse state, Describe(options, fleet));
  if (!state.loaded()) {
    return Error(ErrorCode::kState, "job {} has no weights yet: nothing can be exported",
                 options.job);
  }
  // All nodes, before anything is made.
  v1::CheckExportRequest check;
  check.set_folder(options.path);
  ASSIGN_OR_RETURN(const auto checked,
                   fleet->CallAll<v1::CheckExportResponse>(
                       fleet->short_ms(), [&](auto* stub, auto* context, auto* queue) {
                         return stub->PrepareAsyncCheckExport(context, check, queue);
                       }));
  v1::BeginExportRequest begin;
  begin.set_job(options.job);
  begin.set_epoch(state.epoch());
  begin.set_folder(options.path);
  begin.set_dtype(static_cast<v1::DType>(options.dtype));
  begin.set_file_bytes_max(options.file_bytes_max);
  begin.set_optimizer_state(options.optimizer_state);
  begin.set_overwrite(options.overwrite);
  *begin.mutable_state() = state.state();
  begin.set_checkpoint(options.checkpoint);
  ASSIGN_OR_RETURN(
      const auto begun,
      fleet->CallFirst<v1::BeginExportResponse>([&](auto* stub, auto* context, auto* queue) {
        return stub->PrepareAsyncBeginExport(context, begin, queue);
      }));
  StatusOr<Exported> exported = WriteFiles(options, state, begun, fleet);
  if (!exported.ok()) Abandon(options.path, begun, fleet);
  return exported;
}

int Fail(const Status& status) {
  fmt::print(stderr, "luwuctl: {}\n", Printable(ToString(status)));
  return kExitFailure;
}

void PrintJson(nlohmann::ordered_json json) {
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

int Import(const Options& options, StopSignals* stop) {
  const Stopwatch watch;
  StatusOr<Fleet> fleet = Fleet::Find(options, stop);
  if (!fleet.ok()) return Fail(fleet.status());
  const StatusOr<uint64_t> bytes = RunImport(options, &*fleet);
  if (!bytes.ok()) return Fail(bytes.status());
  const double seconds = watch.seconds();
  if (options.json) {
    PrintJson(
        {{"job", options.job}, {"path", options.path}, {"bytes", *bytes}, {"seconds", seconds}});
  } else {
    fmt::print("imported {:.3f} GB from {} into {} on {} nodes in {:.1f} s\n",
               double(*bytes) * 1e-9, Printable(options.path), Printable(options.job),
               fleet->members().size(), seconds);
  }
  return kExitOk;
}

int Export(const Options& options, StopSignals* stop) {
  const Stopwatch watch;
  StatusOr<Fleet> fleet = Fleet::Find(options, stop);
  if (!fleet.ok()) return Fail(fleet.status());
  const StatusOr<Exported> exported = RunExport(options, &*fleet);
  if (!exported.ok()) return Fail(exported.status());
  const double seconds = watch.seconds();
  if (options.json) {
    PrintJson({{"job", options.job},
               {"folder", options.path},
               {"step", exported->step},
               {"files", exported->files},
               {"bytes", exported->bytes},
               {"seconds", seconds}});
    return kExitOk;
  }
  fmt::print("exported {:.3f} GB of {}, step {}, into {} in {:.1f} s:\n",
             double(exported->bytes) * 1e-9, Printable(options.job), exported->step,
             Printable(options.path), seconds);
  for (const std::string& file : exported->files) fmt::print("  {}\n", Printable(file));
  return kExitOk;
}

}  // namespace luwu::cli
