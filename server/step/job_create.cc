// How a job comes to be and ends: footprint, memory, construction, destruction.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"
#include "server/store/memory_store.h"
#include "server/store/state_tiers.h"

namespace luwu {
namespace {

uint64_t TrainableShards(const JobSpec& spec, const ShardMap& map) {
  uint64_t count = 0;
  for (const LocalShard& shard : map.shards()) count += spec.layers[shard.layer].trainable();
  return count;
}

// Copies of the spec that a daemon keeps of a job: the registry's, the job's, and the one of the
// caller that brought it.
constexpr uint64_t kSpecCopies = 3;

// Tables of what each shard knows of each rank, and of names.
uint64_t TableBytes(const JobSpec& spec, const ShardMap& map) {
  const uint64_t shard = sizeof(JobShard) + sizeof(UnitSum) +
                         ShardProgress::BytesFor(spec.world_size) +
                         spec.world_size * (sizeof(Contribution) + sizeof(ShardSource));
  return map.shard_count() * shard + kSpecCopies * SpecBytes(spec);
}

std::string DescribeFootprint(const JobOptions& options, const JobFootprint& footprint) {
  return fmt::format(
      "job '{}' on node '{}' (optimizer state {}, staging {}, served weights {}, inboxes of {} "
      "workers {}, overflow {}, gradient sums {}, tables {})",
      options.spec.name, options.nodes[options.self].name, HumanBytes(footprint.state_bytes),
      HumanBytes(footprint.staging_bytes), HumanBytes(footprint.served_bytes),
      options.spec.world_size, HumanBytes(footprint.inbox_bytes),
      HumanBytes(footprint.overflow_bytes), HumanBytes(footprint.held_bytes),
      HumanBytes(footprint.table_bytes));
}

// `limits`: zeros are none.
uint64_t MemoryLimit(const MemoryBudget& budget, std::initializer_list<uint64_t> limits) {
  uint64_t limit = budget.total() - budget.used();
  for (const uint64_t each : limits) limit = each == 0 ? limit : std::min(limit, each);
  return limit;
}

ResidencyLimits LimitsFor(uint64_t limit, const JobFootprint& footprint,
                          const Job::Environment& environment, bool can_spill) {
  const uint64_t others = footprint.total() - footprint.state_bytes;
  return {.room_bytes = limit - std::min(limit, others),
          .threads = environment.pool->threads(),
          .can_spill = can_spill};
}

// What of the job's state is in memory and what on disk, so that it fits; `footprint` is that of a
// job with all of it in memory, and becomes that of the plan.
StatusOr<ResidencyPlan> PlanMemory(const JobOptions& options, const ShardMap& map,
                                   const Job::Environment& environment, JobFootprint* footprint) {
  const JobSpec& spec = options.spec;
  const uint64_t others = footprint->total() - footprint->state_bytes;
  const uint64_t limit =
      MemoryLimit(*environment.budget, {spec.memory_bytes, options.memory_bytes_max});
  const ResidencyLimits limits =
      LimitsFor(limit, *footprint, environment, options.storage != nullptr);
  std::optional<ResidencyPlan> plan = PlanResidency(spec, map, limits);
  const uint64_t least = limits.can_spill ? others + LeastRoomBytes(spec, map) : footprint->total();
  if (plan) {
    footprint->state_bytes = plan->resident_bytes;
    footprint->staging_bytes = plan->staging_bytes();
  } else {
    footprint->state_bytes = 0;
    footprint->staging_bytes = LeastRoomBytes(spec, map);
  }
  if (!plan || (spec.memory_bytes != 0 && footprint->total() > spec.memory_bytes)) {
    const bool own = limit == spec.memory_bytes;
    return Error(ErrorCode::kResourceExhausted,
                 "{} needs at least {} of memory{}, and {} are {}; raise {}{}",
                 DescribeFootprint(options, *footprint), HumanBytes(least),
                 limits.can_spill ? " with the rest of its state on disk" : "", HumanBytes(limit),
                 own ? "its memory_bytes" : "left in the budget of the node",
                 own ? "memory_bytes" : "the memory budget (memory.budget), or delete another job",
                 limits.can_spill ? "" : ", or give luwud a data directory for the rest");
  }
  return *std::move(plan);
}

StatusOr<std::unique_ptr<StateStore>> MakeStore(const JobImpl::Plan& plan,
                                                const std::shared_ptr<StorageUse>& use) {
  const JobSpec& spec = plan.options.spec;
  const ResidencyPlan& residency = plan.residency;
  ASSIGN_OR_RETURN(auto memory, MemoryStore::Create(spec, plan.map, &residency.resident));
  if (!residency.spills()) return std::unique_ptr<StateStore>(std::move(memory));
  ASSIGN_OR_RETURN(auto disk, SpillStore::Create(spec, plan.map, residency, use));
  return std::unique_ptr<StateStore>(
      std::make_unique<StateTiers>(std::move(memory), std::move(disk), use));
}

StatusOr<JobMemory> AllocateMemory(const JobImpl::Plan& plan, MemoryBudget* budget) {
  const JobSpec& spec = plan.options.spec;
  JobMemory memory;
  StatusOr<MemoryReservation> reserved =
      budget->Reserve(plan.footprint.total(), DescribeFootprint(plan.options, plan.footprint));
  if (!reserved.ok() && plan.options.storage == nullptr) {
    return MakeError(CodeOf(reserved.status()),
                     MessageOf(reserved.status()) +
                         ", or give luwud a data directory ([storage] path, or --data-dir), and a "
                         "part of the state goes to disk");
  }
  RETURN_IF_ERROR(reserved.status());
  memory.reservation = *std::move(reserved);
  if (plan.options.storage != nullptr) {
    memory.storage_use = std::make_shared<StorageUse>(plan.options.storage);
  }
  ASSIGN_OR_RETURN(memory.store, MakeStore(plan, memory.storage_use));
  ASSIGN_OR_RETURN(memory.weights, ServedWeights::Create(spec, plan.map, plan.options.epoch));
  if (plan.options.storage != nullptr) {
    ASSIGN_OR_RETURN(memory.points,
                     PointMaker::Create(spec, plan.map, plan.residency, plan.options.storage));
  }
  for (uint32_t rank = 0; rank < spec.world_size; ++rank) {
    ASSIGN_OR_RETURN(auto inbox,
                     transport::LocalRegion::Create("luwu-inbox", plan.map.inbox_bytes(),
                                                    transport::Access::kRemoteWrite));
    memory.inboxes.push_back(std::move(inbox));
  }
  ASSIGN_OR_RETURN(memory.overflow, OverflowPool::Create(spec, plan.map));
  ASSIGN_OR_RETURN(memory.held, HeldSums::Create(spec, plan.map, SumsUse::kHeld));
  ASSIGN_OR_RETURN(memory.running, HeldSums::Create(spec, plan.map, SumsUse::kRunning));
  return memory;
}

Status CheckStorage(const JobOptions& options) {
  if (options.spec.durable_every == 0 || options.storage != nullptr) return OkStatus();
  return Error(ErrorCode::kUnsupported,
               "it makes a durable point every {} steps, and the node has no storage; start luwud "
               "with a data directory ([storage] path, or --data-dir), or set durable_every to 0",
               options.spec.durable_every);
}

}  // namespace

JobFootprint FootprintOf(const JobSpec& spec, const ShardMap& map) {
  JobFootprint footprint;
  footprint.state_bytes = StateBytes(spec, map);
  footprint.served_bytes = ServedWeights::BytesFor(map);
  footprint.inbox_bytes = map.inbox_bytes() * spec.world_size;
  footprint.overflow_bytes = OverflowPool::BytesFor(spec, map);
  footprint.held_bytes = HeldSums::BytesFor(spec, map, SumsUse::kHeld) +
                         HeldSums::BytesFor(spec, map, SumsUse::kRunning);
  footprint.table_bytes = TableBytes(spec, map);
  return footprint;
}

Job::Needs Job::NeedsOf(const JobSpec& spec, const std::vector<Node>& nodes, uint32_t self,
                        const Environment& environment) {
  const ShardMap map(spec, Placement(nodes, spec), self);
  const JobFootprint footprint = FootprintOf(spec, map);
  const uint64_t limit = MemoryLimit(*environment.budget, {spec.memory_bytes});
  const std::optional<ResidencyPlan> plan =
      PlanResidency(spec, map, LimitsFor(limit, footprint, environment, /*can_spill=*/true));
  if (!plan) return {};
  return {.memory_bytes = footprint.total() - footprint.state_bytes + plan->resident_bytes +
                          plan->staging_bytes(),
          .stored_bytes = StoredBytesMax(spec, map, *plan)};
}

StatusOr<std::shared_ptr<Job>> Job::Create(JobOptions options, const Environment& environment,
                                           std::unique_ptr<StepReporter> reporter) {
  LUWU_CHECK(options.self < options.nodes.size(), "this node is in the list");
  const std::string what = fmt::format("creating job '{}' on node '{}'", options.spec.name,
                                       options.nodes[options.self].name);
  if (const Status status = CheckStorage(options); !status.ok()) return Annotate(status, what);
  const Placement placement(options.nodes, options.spec);
  ShardMap map(options.spec, placement, options.self);
  JobFootprint footprint = FootprintOf(options.spec, map);
  StatusOr<ResidencyPlan> residency = PlanMemory(options, map, environment, &footprint);
  if (!residency.ok()) return Annotate(residency.status(), what);
  auto plan = std::make_unique<const JobImpl::Plan>(
      JobImpl::Plan{std::move(options), std::move(map), footprint, *std::move(residency)});
  StatusOr<JobMemory> memory = AllocateMemory(*plan, environment.budget);
  if (!memory.ok()) return Annotate(memory.status(), what);
  LogInfo("job_created", "job={} epoch={:#x} shards={} bytes={} spilled_bytes={}",
          plan->options.spec.name, plan->options.epoch, plan->map.shard_count(), footprint.total(),
          plan->residency.spilled_bytes);
  const std::optional<persist::Point> restore = plan->options.restore;
  auto job = std::make_shared<JobImpl>(std::move(plan), environment, *std::move(memory),
                                       std::move(reporter));
  job->Start();
  if (restore) {
    const Status restored = job->Restore(*restore);
    if (!restored.ok()) return Annotate(restored, what);
  }
  return job;
}

JobImpl::JobImpl(std::unique_ptr<const Plan> plan, const Environment& environment, JobMemory memory,
                 std::unique_ptr<StepReporter> reporter)
    : plan_(std::move(plan)),
      env_(environment),
      reservation_(std::move(memory.reservation)),
      storage_use_(std::move(memory.storage_use)),
      store_(std::move(memory.store)),
      weights_(std::move(memory.weights)),
      points_(std::move(memory.points)),
      updater_(plan_->options.spec, plan_->map, store_.get(), weights_.get()),
      reporter_(std::move(reporter)),
      gate_(spec().world_size, TrainableShards(spec(), plan_->map), ClipUnits(spec()),
            InitialLossScale(spec().loss_scaling)),
      published_(plan_->map.shard_count(), 0),
      overflow_(*std::move(memory.overflow)),
      held_(*std::move(memory.held)),
      running_(*std::move(memory.running)) {
  MutexLock lock(mutex_);
  last_tick_ = env_.clock->Now();
  for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
    const bool trainable = spec().layers[plan_->map.shards()[i].layer].trainable();
    shards_.emplace_back(this, i, trainable, spec().world_size);
    shards_.back().squares = updater_.UnitsOf(i);
  }
  ranks_.reserve(spec().world_size);
  for (uint32_t rank = 0; rank < spec().world_size; ++rank) {
    ranks_.emplace_back(spec().slots_per_worker);
    ranks_.back().inbox = std::move(memory.inboxes[rank]);
  }
}

// Not in the constructor, which nobody else knows of yet.
void JobImpl::Start() {
  store_->SetListener(this);
  if (points_ == nullptr) return;
  points_->Start(weights_.get(), {.unpin = [this](const PointItem& item) { UnpinPoint(item); },
                                  .stored = [this](const auto& point) { OnPointStored(point); },
                                  .failed = [this](const Status& why) { OnStateFailed(why); }});
}

JobImpl::~JobImpl() {
  Shutdown(Error(ErrorCode::kCancelled, "job '{}' was deleted", spec().name));
  Drain();
}

void JobImpl::Drain() {
  {
    MutexLock lock(mutex_);
    // Tasks end by themselves; none is submitted after Shutdown.
    while (in_flight_ > 0) changed_.Wait(mutex_);
  }
  if (storage_use_ == nullptr || storage_use_->ended()) return;  // another job may use it by now
  storage_use_->storage().RefuseWaiting(true);
  points_->Stop();
  store_->Stop();
  storage_use_->storage().RefuseWaiting(false);
  storage_use_->End();
}

uint64_t JobImpl::current_step() const {
  MutexLock lock(mutex_);
  return gate_.step();
}

bool JobImpl::loaded() const {
  MutexLock lock(mutex_);
  return state_ != JobState::kLoading;
}

}  // namespace luwu
