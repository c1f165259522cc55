// How a job comes to be and ends: footprint, memory, construction, destruction.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"
#include "server/step/memory_plan.h"
#include "server/store/memory_store.h"
#include "server/store/served_weights.h"
#include "server/store/served_window.h"
#include "server/store/state_tiers.h"

namespace luwu {
namespace {

uint64_t TrainableShards(const JobSpec& spec, const ShardMap& map) {
  uint64_t count = 0;
  for (const LocalShard& shard : map.shards()) count += spec.layers[shard.layer].trainable();
  return count;
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

StatusOr<MemoryPlan> PlanJob(const JobOptions& options, const Job::Environment& environment) {
  const JobSpec& spec = options.spec;
  const Placement placement(options.nodes, spec);
  const bool can_spill = options.storage != nullptr;
  const uint64_t limit =
      MemoryLimit(*environment.budget, {spec.memory_bytes, options.memory_bytes_max});
  std::optional<MemoryPlan> plan =
      PlanMemory(spec, placement, options.self,
                 {.bytes = limit, .threads = environment.pool->threads(), .can_spill = can_spill});
  // Without a storage the reservation says whether there is room.
  if (plan && (spec.memory_bytes == 0 || plan->footprint.total() <= spec.memory_bytes)) {
    return *std::move(plan);
  }
  const MemoryPlan least = LeastMemoryPlan(spec, placement, options.self, can_spill);
  const bool own = limit == spec.memory_bytes;
  return Error(ErrorCode::kResourceExhausted,
               "{} needs at least {} of memory{}, and {} are {}; raise {}{}",
               DescribeFootprint(options, least.footprint), HumanBytes(least.footprint.total()),
               !can_spill               ? ""
               : least.map.has_window() ? " with its state and most of its weights on disk"
                                        : " with its state on disk (served copies of split masters "
                                          "stay in memory)",
               HumanBytes(limit), own ? "its memory_bytes" : "left in the budget of the node",
               own ? "memory_bytes" : "the memory budget (memory.budget), or delete another job",
               can_spill ? "" : ", or give luwud a data directory for the rest");
}

StatusOr<std::unique_ptr<StateStore>> MakeStore(const JobPlan& plan, const ShardHomes& homes,
                                                const std::shared_ptr<StorageUse>& use) {
  const JobSpec& spec = plan.options.spec;
  const ResidencyPlan& residency = plan.residency;
  ASSIGN_OR_RETURN(auto memory, MemoryStore::Create(spec, plan.map, &residency.resident, homes));
  if (!residency.spills()) return std::unique_ptr<StateStore>(std::move(memory));
  ASSIGN_OR_RETURN(auto disk, SpillStore::Create(spec, plan.map, residency, use));
  return std::unique_ptr<StateStore>(
      std::make_unique<StateTiers>(std::move(memory), std::move(disk), use));
}

StatusOr<std::unique_ptr<ServedCopies>> MakeCopies(const JobPlan& plan, const ShardHomes& homes,
                                                   const std::shared_ptr<StorageUse>& use) {
  const JobOptions& options = plan.options;
  if (plan.map.has_window()) {
    return ServedWindow::Create(options.spec, plan.map, options.epoch, use);
  }
  return ServedWeights::Create(options.spec, plan.map, options.epoch, homes);
}

StatusOr<JobMemory> AllocateMemory(const JobPlan& plan, const Job::Environment& environment) {
  const JobSpec& spec = plan.options.spec;
  const ShardHomes& homes = environment.pool->homes();
  JobMemory memory;
  StatusOr<MemoryReservation> reserved = environment.budget->Reserve(
      plan.footprint.total(), DescribeFootprint(plan.options, plan.footprint));
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
  ASSIGN_OR_RETURN(memory.store, MakeStore(plan, homes, memory.storage_use));
  ASSIGN_OR_RETURN(memory.weights, MakeCopies(plan, homes, memory.storage_use));
  if (plan.options.storage != nullptr) {
    ASSIGN_OR_RETURN(memory.points,
                     PointMaker::Create(spec, plan.map, plan.residency, plan.options.storage));
  }
  for (uint32_t rank = 0; rank < spec.world_size; ++rank) {
    ASSIGN_OR_RETURN(auto inbox,
                     transport::LocalRegion::Create("luwu-inbox", plan.map.inbox_bytes(),
                                                    transport::Access::kRemoteWrite,
                                                    homes.TouchInTurns(plan.map.inbox_bytes())));
    memory.inboxes.push_back(std::move(inbox));
  }
  ASSIGN_OR_RETURN(memory.overflow, OverflowPool::Create(spec, plan.map));
  ASSIGN_OR_RETURN(memory.held, HeldSums::Create(spec, plan.map, SumsUse::kHeld, homes));
  ASSIGN_OR_RETURN(memory.running, HeldSums::Create(spec, plan.map, SumsUse::kRunning, homes));
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

Job::Needs Job::NeedsOf(const JobSpec& spec, const std::vector<Node>& nodes, uint32_t self,
                        const Environment& environment, const Room& room) {
  const Placement placement(nodes, spec);
  const uint64_t least = LeastMemoryPlan(spec, placement, self, room.has_storage).footprint.total();
  const std::optional<MemoryPlan> plan = PlanMemory(
      spec, placement, self,
      {.bytes = MemoryLimit(*environment.budget, {spec.memory_bytes, room.memory_bytes_max}),
       .threads = environment.pool->threads(),
       .can_spill = room.has_storage});
  if (!plan) return {.memory_bytes_least = least};
  return {.memory_bytes = plan->footprint.total(),
          .stored_bytes = StoredBytesMax(spec, plan->map, plan->residency),
          .memory_bytes_least = least};
}

StatusOr<std::shared_ptr<Job>> Job::Create(JobOptions options, const Environment& environment,
                                           std::unique_ptr<StepReporter> reporter) {
  LUWU_CHECK(options.self < options.nodes.size(), "this node is in the list");
  const std::string what = fmt::format("creating job '{}' on node '{}'", options.spec.name,
                                       options.nodes[options.self].name);
  if (const Status status = CheckStorage(options); !status.ok()) return Annotate(status, what);
  StatusOr<MemoryPlan> divided = PlanJob(options, environment);
  if (!divided.ok()) return Annotate(divided.status(), what);
  auto plan =
      std::make_unique<const JobPlan>(JobPlan{std::move(options), std::move(divided->map),
                                              divided->footprint, std::move(divided->residency)});
  StatusOr<JobMemory> memory = AllocateMemory(*plan, environment);
  if (!memory.ok()) return Annotate(memory.status(), what);
  LogInfo("job_created", "job={} epoch={:#x} shards={} bytes={} spilled_bytes={} window_slots={}",
          plan->options.spec.name, plan->options.epoch, plan->map.shard_count(),
          plan->footprint.total(), plan->residency.spilled_bytes, plan->map.window_slots());
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

JobImpl::JobImpl(std::unique_ptr<const JobPlan> plan, const Environment& environment,
                 JobMemory memory, std::unique_ptr<StepReporter> reporter)
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
      places_(plan_->map.has_window() ? 2 * plan_->map.shard_count() : 0, 0),
      overflow_(*std::move(memory.overflow)),
      held_(*std::move(memory.held)),
      running_(*std::move(memory.running)) {
  MutexLock lock(mutex_);
  last_tick_ = env_.clock->Now();
  for (uint32_t i = 0; i < plan_->map.shard_count(); ++i) {
    const bool trainable = spec().layers[plan_->map.shards()[i].layer].trainable();
    shards_.emplace_back(this, i, trainable, spec().world_size);
    shards_.back().set_home(env_.pool->homes().HomeOf(i));
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
  weights_->SetHooks({.moved = [this] { OnCopiesMoved(); },
                      .failed = [this](const Status& why) { OnStateFailed(why); }});
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
  weights_->Stop();
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

std::string JobImpl::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace luwu
