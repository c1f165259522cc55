#include "tests/bench/spill/spill_job.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "server/step/memory_plan.h"
#include "server/store/residency_plan.h"
#include "tests/bench/layer_table.h"

namespace luwu::bench {
namespace {

constexpr uint64_t kBudgetBytes = uint64_t{1} << 40;  // memory_bytes is the limit that counts

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

StatusOr<std::unique_ptr<SpillJob>> SpillJob::Create(const SpillJobOptions& options) {
  std::unique_ptr<SpillJob> job(new SpillJob(options));
  RETURN_IF_ERROR(job->Start());
  return StatusOr<std::unique_ptr<SpillJob>>(std::move(job));
}

SpillJob::~SpillJob() {
  workers_.clear();
  world_.reset();
  storage_.reset();
  node_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(options_.path, ignored);
}

Status SpillJob::Start() {
  std::vector<LayerSpec> layers;
  for (const BenchLayer& layer : EqualLayers(options_.params, options_.layers)) {
    layers.push_back(fakes::Layer(layer.name, layer.elements));
    gradient_.resize(std::max<size_t>(gradient_.size(), layer.elements), 1e-3f);
  }
  spec_ = fakes::SmallSpec(options_.workers, std::move(layers));
  spec_.served_dtype = spec_.gradient_dtype = DType::kBFloat16;
  spec_.shard_elements = kDefaultShardElements;
  spec_.slots_per_worker = kDefaultSlotsPerWorker;
  spec_.durable_every = options_.durable_every;
  if (options_.durable_every > 0) spec_.durability = Durability::kSynced;
  const ShardMap map(spec_, Placement(fakes::NodeList(1), spec_), 0);
  const JobFootprint footprint = FootprintOf(spec_, map);
  const auto model = static_cast<double>(footprint.total() - footprint.inbox_bytes);
  spec_.memory_bytes =
      static_cast<uint64_t>(model / options_.oversubscription) + footprint.inbox_bytes;
  RETURN_IF_ERROR(OpenNode());
  ASSIGN_OR_RETURN(storage_, node_->CreateJob({spec_.name, 1, "", 0}, 0));
  world_ = std::make_unique<fakes::JobWorld>(spec_, kBudgetBytes, storage_);
  RETURN_IF_ERROR(world_->status());
  world_->LoadAll([](uint32_t, uint64_t element) { return float(element % 1000) / 1000; });
  return Join();
}

Status SpillJob::OpenNode() {
  persist::StorageOptions storage;
  storage.path = options_.path;
  storage.node_name = "bench";
  storage.engine = options_.engine;
  ASSIGN_OR_RETURN(node_, persist::NodeStorage::Open(storage));
  return OkStatus();
}

Status SpillJob::Join() {
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    workers_.push_back(world_->Join(rank));
    RETURN_IF_ERROR(workers_.back()->open_status());
  }
  return OkStatus();
}

// As a backward pass does: last layer first.
void SpillJob::Push(uint32_t worker, double compute_s) {
  fakes::FakeWorker& fake = *workers_[worker];
  const std::chrono::duration<double> pause(compute_s / double(spec_.layers.size()));
  for (size_t i = spec_.layers.size(); i-- > 0;) {
    if (compute_s > 0) std::this_thread::sleep_for(pause);
    const uint64_t shards = ShardCount(spec_.layers[i].elements, spec_.shard_elements);
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const fakes::Push push = {.step = step_,
                                .layer = static_cast<uint32_t>(i),
                                .shard = shard,
                                .close = true,
                                .values = &gradient_};
      fake.Send(push, fake.AwaitSlot());
    }
  }
}

StatusOr<SpillStep> SpillJob::Step(double compute_s) {
  const TierSnapshot before = tiers();
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& worker : workers_) {
    RETURN_IF_ERROR(worker->Begin(step_, {fakes::AdamHyper(1e-3)}));
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    threads.emplace_back([this, rank, compute_s] { Push(rank, compute_s); });
  }
  for (std::thread& thread : threads) thread.join();
  const double pushed = SecondsSince(begin);
  fakes::CommitWait wait;
  world_->job().AwaitCommit(workers_[0]->session_ptr(), step_, world_->clock().AfterMs(60000),
                            wait.Callback());
  RETURN_IF_ERROR(wait.Wait().status());
  ++step_;
  SpillStep step;
  step.seconds = SecondsSince(begin);
  step.exposed_seconds = step.seconds - pushed;
  const TierSnapshot after = tiers();
  step.read_bytes = after.spill.read_bytes - before.spill.read_bytes;
  step.written_bytes = after.spill.written_bytes - before.spill.written_bytes +
                       after.point_written_bytes - before.point_written_bytes;
  step.busy_seconds = after.spill.busy_seconds - before.spill.busy_seconds;
  return step;
}

StatusOr<double> SpillJob::CreateCheckpoint(const std::string& name) {
  const std::vector<persist::Point> points = storage_->Points();
  if (points.empty()) return Error(ErrorCode::kInternal, "there is no point yet");
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(storage_->CreateCheckpoint({name, points.back(), 0}));
  return SecondsSince(begin);
}

StatusOr<SpillJob::Recovery> SpillJob::CrashAndRecover() {
  Recovery recovery;
  workers_.clear();
  world_.reset();
  storage_.reset();
  node_.reset();
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(OpenNode());
  recovery.open_seconds = SecondsSince(begin);
  ASSIGN_OR_RETURN(storage_, node_->OpenJob(spec_.name));
  const std::vector<persist::Point> points = storage_->Points();
  if (points.empty()) return Error(ErrorCode::kInternal, "no point has survived");
  RETURN_IF_ERROR(storage_->RollBack(points.back(), 2));
  const auto restore = std::chrono::steady_clock::now();
  world_ = std::make_unique<fakes::JobWorld>(spec_, kBudgetBytes, storage_, points.back());
  RETURN_IF_ERROR(world_->status());
  recovery.restore_seconds = SecondsSince(restore);
  recovery.read_bytes = node_->Snapshot().read_bytes;
  step_ = points.back().step;
  RETURN_IF_ERROR(Join());
  return recovery;
}

}  // namespace luwu::bench
