#include "tests/bench/spill/spill_bench.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/bench/samples.h"
#include "tests/bench/spill/raw_device.h"

namespace luwu::bench {
namespace {

constexpr double kComputeShare = 1.02;  // of the raw device time of a step
constexpr uint64_t kRawBlockBytes = 1 << 20;
constexpr uint32_t kSpaceCycles = 10;

// What this process has caused to be written to devices.
uint64_t DeviceBytesWritten() {
  std::ifstream file("/proc/self/io");
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

persist::Engine EngineOf(const std::string& name) {
  return name == "rocksdb_values" ? persist::Engine::kRocksdbValues : persist::Engine::kExtents;
}

class SpillBench {
 public:
  SpillBench(const SpillBenchOptions& options, StopCheck stop, SpillReport* report)
      : options_(options), stop_(stop), report_(report) {}

  Status Run() {
    report_->options = options_;
    RETURN_IF_ERROR(MeasureStreamed());
    RETURN_IF_ERROR(MeasureDurable());
    return MeasureTraining();
  }

 private:
  StatusOr<std::unique_ptr<SpillJob>> MakeJob(uint32_t workers, uint32_t durable_every) {
    return SpillJob::Create({.path = options_.folder + "/data",
                             .engine = EngineOf(options_.engine),
                             .params = options_.params,
                             .layers = options_.layers,
                             .workers = workers,
                             .oversubscription = options_.oversubscription,
                             .durable_every = durable_every});
  }

  Status CheckStop(const char* what, uint32_t round, uint32_t rounds) const {
    std::fprintf(stderr, "\r%s: round %u of %u ", what, round, rounds);
    return stop_() ? Error(ErrorCode::kCancelled, "stopped by a signal") : OkStatus();
  }

  // A raw pass moves as many bytes each way as a step streams.
  Status MakeRaw(const SpillJob& job, uint64_t streamed_bytes) {
    raw_.reset();
    report_->direct = job.storage().direct;
    raw_bytes_ = std::max(streamed_bytes, kRawBlockBytes) / kRawBlockBytes * kRawBlockBytes;
    ASSIGN_OR_RETURN(raw_, RawDevice::Create({.path = options_.folder + "/raw",
                                              .pass_bytes = raw_bytes_,
                                              .block_bytes = kRawBlockBytes}));
    return OkStatus();
  }

  StatusOr<double> RawSeconds(const SpillStep& step) {
    ASSIGN_OR_RETURN(const RawDevice::Transfer raw,
                     raw_->SecondsFor(step.read_bytes, step.written_bytes));
    report_->raw_both_gb_per_s.push_back(raw.both_gb_per_s);
    if (step.written_bytes > step.read_bytes) {
      report_->raw_write_gb_per_s.push_back(raw.rest_gb_per_s);
    }
    return raw.seconds;
  }

  Status MeasureRounds(const char* what, SpillJob* job, std::vector<SpillRound>* rounds) {
    RETURN_IF_ERROR(job->Step(0).status());  // warms up: files grow, buffers are read ahead
    RETURN_IF_ERROR(job->Step(0).status());
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      RETURN_IF_ERROR(CheckStop(what, round + 1, options_.rounds));
      SpillRound result;
      ASSIGN_OR_RETURN(result.step, job->Step(0));
      ASSIGN_OR_RETURN(result.raw_seconds, RawSeconds(result.step));
      rounds->push_back(result);
    }
    std::fputs("\n", stderr);
    return OkStatus();
  }

  Status MeasureStreamed() {
    ASSIGN_OR_RETURN(const auto job, MakeJob(1, 0));
    report_->tiers = job->tiers();
    report_->memory_bytes = job->memory_bytes();
    RETURN_IF_ERROR(MakeRaw(*job, report_->tiers.streamed_bytes));
    ASSIGN_OR_RETURN(const double read, raw_->Read());
    report_->raw_read_gb_per_s.push_back(static_cast<double>(raw_bytes_) / read / 1e9);
    return MeasureRounds("streamed", job.get(), &report_->streamed);
  }

  Status MeasureDurable() {
    ASSIGN_OR_RETURN(const auto job, MakeJob(1, 1));
    const uint64_t begin = DeviceBytesWritten();
    const uint64_t stored = job->storage().written_bytes;
    RETURN_IF_ERROR(MeasureSpace(job.get(), begin, stored));
    RETURN_IF_ERROR(MeasureRounds("durable", job.get(), &report_->durable));
    RETURN_IF_ERROR(MeasureCheckpoints(job.get()));
    ASSIGN_OR_RETURN(report_->recovery, job->CrashAndRecover());
    return OkStatus();
  }

  // What a checkpoint holds cannot be overwritten, so the step after it needs other space.
  Status MeasureCheckpoints(SpillJob* job) {
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      RETURN_IF_ERROR(CheckStop("checkpoint", round + 1, options_.rounds));
      const std::string name = fmt::format("c{}", round);
      ASSIGN_OR_RETURN(const double seconds, job->CreateCheckpoint(name));
      report_->checkpoint_seconds.push_back(seconds);
      ASSIGN_OR_RETURN(const SpillStep step, job->Step(0));
      report_->after_checkpoint.push_back(step);
      RETURN_IF_ERROR(job->Step(0).status());
      RETURN_IF_ERROR(job->DeleteCheckpoint(name));
      RETURN_IF_ERROR(job->Step(0).status());
    }
    std::fputs("\n", stderr);
    return OkStatus();
  }

  // Over cycles of their own, without the raw device's writes.
  Status MeasureSpace(SpillJob* job, uint64_t device_before, uint64_t stored_before) {
    for (uint32_t i = 0; i < kSpaceCycles; ++i) {
      RETURN_IF_ERROR(CheckStop("space", i + 1, kSpaceCycles));
      RETURN_IF_ERROR(job->Step(0).status());
    }
    const persist::StorageSnapshot storage = job->storage();
    report_->write_amplification = static_cast<double>(DeviceBytesWritten() - device_before) /
                                   static_cast<double>(storage.written_bytes - stored_before);
    const TierSnapshot tiers = job->tiers();
    const uint64_t generation = tiers.spilled_bytes + tiers.resident_bytes / 2;
    report_->space = static_cast<double>(storage.allocated_bytes) / static_cast<double>(generation);
    return OkStatus();
  }

  Status MeasureTraining() {
    ASSIGN_OR_RETURN(const auto job, MakeJob(2, 0));
    std::vector<double> raw_seconds;
    for (const SpillRound& round : report_->streamed) raw_seconds.push_back(round.raw_seconds);
    report_->compute_seconds = kComputeShare * Median(raw_seconds);
    RETURN_IF_ERROR(job->Step(report_->compute_seconds).status());
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      RETURN_IF_ERROR(CheckStop("training", round + 1, options_.rounds));
      ASSIGN_OR_RETURN(const SpillStep step, job->Step(report_->compute_seconds));
      report_->trained.push_back(step);
    }
    std::fputs("\n", stderr);
    return OkStatus();
  }

  const SpillBenchOptions options_;
  const StopCheck stop_;
  SpillReport* const report_;
  std::unique_ptr<RawDevice> raw_;
  uint64_t raw_bytes_ = 0;
};

}  // namespace

Status RunSpillBench(const SpillBenchOptions& options, StopCheck stop, SpillReport* report) {
  const OthersMeter others;
  report->machine = DescribeMachine();
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return Error(ErrorCode::kUnavailable, "cannot make {}: {}", options.folder, error.message());
  }
  RETURN_IF_ERROR(SpillBench(options, stop, report).Run());
  report->others_cpu_share = others.Share();
  return OkStatus();
}

}  // namespace luwu::bench
