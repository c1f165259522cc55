// How a job comes to be and ends: footprint, memory, construction, destruction.
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/step/job_impl.h"
#include "server/store/memory_store.h"

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
      "job '{}' on node '{}' (optimizer state {}, served weights {}, inboxes of {} workers {}, "
      "overflow {}, gradient sums {}, tables {})",
      options.spec.name, options.nodes[options.self].name, HumanBytes(footprint.state_bytes),
      HumanBytes(footprint.served_bytes), options.spec.world_size,
      HumanBytes(footprint.inbox_bytes), HumanBytes(footprint.overflow_bytes),
      HumanBytes(footprint.held_bytes), HumanBytes(footprint.table_bytes));
}

StatusOr<JobMemory> AllocateMemory(const JobImpl::Plan& plan, MemoryBudget* budget) {
  const JobSpec& spec = plan.options.spec;
  JobMemory memory;
  ASSIGN_OR_RETURN(
      memory.reservation,
      budget->Reserve(plan.footprint.total(), DescribeFootprint(plan.options, plan.footprint)));
  ASSIGN_OR_RETURN(memory.store, MemoryStore::Create(spec, plan.map));
  ASSIGN_OR_RETURN(memory.weights, ServedWeights::Create(spec, plan.map, plan.options.epoch));
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

StatusOr<std::shared_ptr<Job>> Job::Create(JobOptions options, const Environment& environment,
                                           std::unique_ptr<StepReporter> reporter) {
  LUWU_CHECK(options.self < options.nodes.size(), "this node is in the list");
  const Placement placement(options.nodes, options.spec);
  ShardMap map(options.spec, placement, options.self);
  const JobFootprint footprint = FootprintOf(options.spec, map);
  auto plan = std::make_unique<const JobImpl::Plan>(
      JobImpl::Plan{std::move(options), std::move(map), footprint});
  StatusOr<JobMemory> memory = AllocateMemory(*plan, environment.budget);
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    fmt::format("creating job '{}' on node '{}'", plan->options.spec.name,
                                plan->options.nodes[plan->options.self].name));
  }
  LogInfo("job_created", "job={} epoch={:#x} shards={} bytes={}", plan->options.spec.name,
          plan->options.epoch, plan->map.shard_count(), footprint.total());
  return std::make_shared<JobImpl>(std::move(plan), environment, *std::move(memory),
                                   std::move(reporter));
}

JobImpl::JobImpl(std::unique_ptr<const Plan> plan, const Environment& environment, JobMemory memory,
                 std::unique_ptr<StepReporter> reporter)
    : plan_(std::move(plan)),
      env_(environment),
      reservation_(std::move(memory.reservation)),
      store_(std::move(memory.store)),
      weights_(std::move(memory.weights)),
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

JobImpl::~JobImpl() {
  Shutdown(Error(ErrorCode::kCancelled, "job '{}' was deleted", spec().name));
  MutexLock lock(mutex_);
  // Tasks end by themselves; none is submitted after Shutdown.
  while (in_flight_ > 0) changed_.Wait(mutex_);
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
