#include "client/src/fetch_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "client/src/fetch_action.h"
#include "common/base/crc32c.h"

namespace luwu::client {
namespace {

constexpr size_t kUnits = 16;  // shards in flight per fetch
constexpr uint64_t kStagingBytesMax = 32 * kMiB;

}  // namespace

FetchContext::FetchContext(Fabric& fabric) : waiter(fabric.monitor()) {
  for (size_t i = 0; i < kUnits; ++i) units.push_back(std::make_unique<ReadUnit>(&fabric, &waiter));
}

FetchEngine::Loan FetchEngine::TakeContext() {
  return contexts_.Take([this] { return std::make_unique<FetchContext>(*fabric_); });
}

// Gives some of the context's units staging memory: at least two, more while they are small.
Status FetchEngine::AddStaging(FetchContext& context, uint64_t shard_bytes) {
  if (context.staging.bytes() > 0) return OkStatus();
  const uint64_t stride = AlignUp(shard_bytes, 4096);
  const uint64_t count = std::clamp<uint64_t>(kStagingBytesMax / stride, 2, kUnits);
  ASSIGN_OR_RETURN(context.staging, AllocateHuge(count * stride));
  for (uint64_t i = 0; i < count; ++i) {
    context.units[i]->staging = context.staging.span().subspan(i * stride, stride);
  }
  return OkStatus();
}

Status FetchEngine::Warm() {
  Loan context = TakeContext();
  for (const uint32_t node : fabric_->active()) {
    if (fabric_->node(node).is_shm()) continue;
    return AddStaging(*context, fabric_->plan().served_shard_bytes_max());
  }
  return OkStatus();
}

Status FetchEngine::Fetch(const FetchCall& call, FetchContext& context) {
  Job job;
  job.call = call;
  job.context = &context;
  job.plan = &fabric_->plan().layers()[call.layer];
  for (const LayerPlan::NodeShards& here : job.plan->by_node) {
    if (fabric_->node(here.node).is_shm()) continue;
    RETURN_IF_ERROR(AddStaging(context, fabric_->plan().served_shard_bytes_max()));
    break;
  }
  if (!context.segments.empty()) {
    job.next_shard = context.segments.front().offset / fabric_->plan().spec().shard_elements;
  }
  const Status status = Run(job);
  if (!status.ok()) Drain(job);
  return status;
}

Status FetchEngine::Run(Job& job) {
  while (true) {
    Action action;
    {
      MonitorLock lock(fabric_->monitor());
      RETURN_IF_ERROR(NextAction(lock, job, &action));
    }
    if (action.kind == Action::Kind::kDone) return OkStatus();
    RETURN_IF_ERROR(Perform(job, action));
  }
}

// Waits until there is something to do, all is done, or nothing can go on.
Status FetchEngine::NextAction(const MonitorLock& lock, Job& job, Action* action) {
  while (true) {
    RETURN_IF_ERROR(fabric_->Health(lock));
    Status error;
    TimePoint wake_at = job.call.deadline;
    job.late = job.unloaded = nullptr;
    if (TakeUnit(lock, job, action, &error, &wake_at)) return error;
    if (TakeShard(lock, job, action, &error, &wake_at)) return error;
    const auto is_free = [&](const auto& unit) {
      return unit->state(lock) == ReadUnit::State::kFree;
    };
    const auto& units = job.context->units;
    if (NextShard(job) == nullptr && std::all_of(units.begin(), units.end(), is_free)) {
      return OkStatus();
    }
    RETURN_IF_ERROR(fabric_->CheckAllNodes(lock));
    if (std::chrono::steady_clock::now() >= job.call.deadline) return DeadlineError(lock, job);
    fabric_->WaitForChange(lock, job.context->waiter, wake_at);
  }
}

// True when a read has ended: it is to be accepted, or repeated (or an error is set).
bool FetchEngine::TakeUnit(const MonitorLock& lock, Job& job, Action* action, Status* error,
                           TimePoint* wake_at) {
  for (const auto& unit : job.context->units) {
    if (unit->state(lock) == ReadUnit::State::kArrived) {
      *action = {.kind = Action::Kind::kAccept, .shard = unit->plan.shard, .unit = unit.get()};
      return true;
    }
    if (unit->state(lock) == ReadUnit::State::kFree) continue;
    const uint32_t index = unit->plan.shard->node;
    job.blocked_node = index;
    if (*error = fabric_->CheckNode(lock, index); !error->ok()) return true;
    if (unit->state(lock) != ReadUnit::State::kFailed) continue;
    const ErrorCode code = CodeOf(unit->status(lock));
    NodeLink& node = fabric_->node(index);
    if (code != ErrorCode::kUnavailable && code != ErrorCode::kCancelled) {
      *error = Annotate(unit->status(lock), node.Name());
      return true;
    }
    std::shared_ptr<Link> link = node.link(lock);
    if (link == nullptr) continue;
    if (std::chrono::steady_clock::now() < unit->retry_at(lock)) {
      *wake_at = std::min(*wake_at, unit->retry_at(lock));
      continue;
    }
    unit->BeginPost(lock);
    fabric_->counters().retries.fetch_add(1, std::memory_order_relaxed);
    *action = {.kind = Action::Kind::kReadAgain,
               .shard = unit->plan.shard,
               .unit = unit.get(),
               .link = std::move(link)};
    return true;
  }
  return false;
}

// The next wanted shard that is not on its way; null: there is none.
const ShardPlan* FetchEngine::NextShard(Job& job) {
  if (!job.again.empty()) return job.again.back();
  const std::vector<ShardPlan>& shards = job.plan->shards;
  while (job.next_shard < shards.size() &&
         Intersecting(job.context->segments, shards[job.next_shard].range).empty()) {
    ++job.next_shard;
  }
  return job.next_shard < shards.size() ? &shards[job.next_shard] : nullptr;
}

void FetchEngine::CountTaken(Job& job) {
  if (job.again.empty()) {
    ++job.next_shard;
  } else {
    job.again.pop_back();
  }
}

// True when the next wanted shard can be copied, read, or asked for (or an error is set).
bool FetchEngine::TakeShard(const MonitorLock& lock, Job& job, Action* action, Status* error,
                            TimePoint* wake_at) {
  const ShardPlan* const next = NextShard(job);
  if (next == nullptr) return false;
  const ShardPlan& shard = *next;
  job.blocked_node = shard.node;
  if (*error = fabric_->CheckNode(lock, shard.node); !error->ok()) return true;
  const StatusOr<bool> readable = IsReadable(lock, job.call, shard);
  if (!readable.ok()) {
    *error = readable.status();
    return true;
  }
  if (!*readable) {
    job.late = &shard;
    return false;
  }
  std::shared_ptr<Link> link = fabric_->node(shard.node).link(lock);
  if (link == nullptr) return false;
  const StatusOr<std::optional<CopyPlace>> place = FindPlace(lock, job.call, shard);
  if (!place.ok()) {
    *error = place.status();
    return true;
  }
  if (!*place) {
    job.unloaded = &shard;
    return TakeWishes(lock, job, shard, action, wake_at);
  }
  if (fabric_->node(shard.node).is_shm()) {
    *action = {
        .kind = Action::Kind::kCopy, .shard = &shard, .link = std::move(link), .place = **place};
    CountTaken(job);
    return true;
  }
  ReadUnit::Plan plan = PlanRead(lock, job, shard, **place);
  for (const auto& unit : job.context->units) {
    if (unit->state(lock) != ReadUnit::State::kFree) continue;
    if (plan.staged && unit->staging.empty()) continue;
    if (plan.staged) plan.target = unit->staging.first(plan.range.elements * DTypeBytes(served()));
    unit->plan = plan;
    unit->BeginPost(lock);
    *action = {
        .kind = Action::Kind::kRead, .shard = &shard, .unit = unit.get(), .link = std::move(link)};
    CountTaken(job);
    return true;
  }
  return false;
}

// Whole shards when the CRC is wanted, else what the segments need; straight into the caller's
// memory when that is one piece of the served dtype.
ReadUnit::Plan FetchEngine::PlanRead(const MonitorLock& lock, const Job& job,
                                     const ShardPlan& shard, const CopyPlace& place) {
  const std::span<const Segment> inside = Intersecting(job.context->segments, shard.range);
  const ShardRange hull = Hull(job.context->segments, shard.range);
  ReadUnit::Plan plan;
  plan.shard = &shard;
  plan.place = place;
  plan.verify = WantsCrc(lock, job.call, shard, hull.elements == shard.range.elements);
  plan.range = plan.verify ? shard.range : hull;
  plan.staged = inside.size() != 1 || inside.front().dtype != served() ||
                hull.elements != plan.range.elements;
  if (!plan.staged) {
    const Segment piece = Clip(inside.front(), shard.range);
    plan.target = {piece.data, piece.count * DTypeBytes(piece.dtype)};
  }
  return plan;
}

Status FetchEngine::Perform(Job& job, const Action& action) {
  switch (action.kind) {
    case Action::Kind::kDone:
      return OkStatus();
    case Action::Kind::kCopy:
      return CopyMapped(job, action);
    case Action::Kind::kAsk:
      SendWishes(action);
      return OkStatus();
    case Action::Kind::kAccept:
      return AcceptUnit(job, *action.unit);
    case Action::Kind::kRead:
    case Action::Kind::kReadAgain:
      break;
  }
  action.unit->Post(*action.link);
  // A transport may fail requests without an event; the keeper must hear of it.
  if (!action.link->endpoint().connected()) {
    fabric_->node(action.shard->node)
        .Abort(action.link, Error(ErrorCode::kUnavailable, "the data link failed"));
  }
  return OkStatus();
}

Status FetchEngine::CopyMapped(Job& job, const Action& action) {
  const ShardPlan& shard = *action.shard;
  const ConstByteSpan payload = MappedPayload(shard, action.place, *action.link);
  ScatterRange(job.context->segments, shard.range, served(), payload);
  // The header is read after the payload: if it still names the version, so were the bytes.
  std::atomic_thread_fence(std::memory_order_acquire);
  bool verify = false;
  {
    MonitorLock lock(fabric_->monitor());
    constexpr bool kAllMapped = true;
    verify = WantsCrc(lock, job.call, shard, kAllMapped);
  }
  ASSIGN_OR_RETURN(const bool stayed, CheckCopy(job.call, shard, action.place,
                                                MappedHeader(action.place, *action.link),
                                                verify ? payload : ConstByteSpan()));
  if (!stayed) {
    NoteGone(job, shard, action.place.residence);
    return OkStatus();
  }
  uint64_t elements = 0;
  for (const Segment& segment : Intersecting(job.context->segments, shard.range)) {
    elements += Clip(segment, shard.range).count;
  }
  fabric_->counters().fetched_bytes.fetch_add(elements * DTypeBytes(served()),
                                              std::memory_order_relaxed);
  return OkStatus();
}

Status FetchEngine::AcceptUnit(Job& job, ReadUnit& unit) {
  const ReadUnit::Plan& plan = unit.plan;
  ASSIGN_OR_RETURN(const bool stayed,
                   CheckCopy(job.call, *plan.shard, plan.place, unit.header(),
                             plan.verify ? ConstByteSpan(plan.target) : ConstByteSpan()));
  if (!stayed) {
    NoteGone(job, *plan.shard, plan.place.residence);
    MonitorLock lock(fabric_->monitor());
    unit.Release(lock);
    return OkStatus();
  }
  if (plan.staged) {
    // The segments may be wider than the range that was read, but not inside the shard.
    ScatterRange(job.context->segments, plan.range, served(), plan.target);
  }
  fabric_->counters().fetched_bytes.fetch_add(plan.target.size(), std::memory_order_relaxed);
  MonitorLock lock(fabric_->monitor());
  unit.Release(lock);
  const bool whole = plan.range.elements == plan.shard->range.elements;
  if (plan.verify || !WantsCrc(lock, job.call, *plan.shard, whole)) return OkStatus();
  return Error(ErrorCode::kStaleVersion,
               "{}: this worker closed the layer while it was being fetched",
               Describe(job.call, *plan.shard));
}

// After an error: no read is in flight when it returns.
void FetchEngine::Drain(Job& job) {
  FetchContext& context = *job.context;
  const auto posted = [&](const MonitorLock& lock) -> ReadUnit* {
    for (const auto& unit : context.units) {
      if (unit->state(lock) == ReadUnit::State::kPosted) return unit.get();
    }
    return nullptr;
  };
  while (true) {
    std::shared_ptr<Link> link;
    ReadUnit* unit = nullptr;
    {
      MonitorLock lock(fabric_->monitor());
      unit = posted(lock);
      if (unit == nullptr) break;
      link = fabric_->node(unit->plan.shard->node).link(lock);
    }
    // The only way to take a request back is to end its link.
    if (link != nullptr) {
      fabric_->node(unit->plan.shard->node)
          .Abort(link, Error(ErrorCode::kUnavailable, "a fetch ended at its deadline"));
    }
    MonitorLock lock(fabric_->monitor());
    constexpr uint64_t kRecheckMs = 1000;
    if (posted(lock) == unit) context.waiter.WaitUntil(lock, DeadlineAfter(kRecheckMs));
  }
  MonitorLock lock(fabric_->monitor());
  for (const auto& unit : context.units) unit->Release(lock);
}

}  // namespace luwu::client
