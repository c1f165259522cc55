// What status pages show of a job.
#include "server/step/job_impl.h"

namespace luwu {
namespace {

void FillWindow(const JobSpec& spec, const ShardMap& map, const ServedCopies& weights,
                TierSnapshot* out) {
  out->window_slots = map.window_slots();
  out->window_slot_bytes = map.window_slot_bytes();
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const bool trainable = spec.layers[map.shards()[i].layer].trainable();
    out->window_copies += trainable ? 2 : 1;
    if (trainable) out->window_version_bytes += weights.PayloadBytes(i);
  }
  out->window = weights.counters();
}

}  // namespace

JobSnapshot JobImpl::Snapshot() const {
  MutexLock lock(mutex_);
  const TimePoint now = env_.clock->Now();
  JobSnapshot out;
  out.name = spec().name;
  out.epoch = epoch();
  out.state = state_;
  out.failure = failure_;
  out.current_step = gate_.step();
  if (gate_.last()) out.last_outcome = gate_.last()->decision.outcome;
  if (state_ == JobState::kFailed) out.last_outcome = Outcome::kFailed;
  if (gate_.last()) out.grad_norm = gate_.last()->decision.grad_norm;
  out.update_mode = spec().update_mode;
  out.optimizer = spec().optimizer;
  out.clip_scope = spec().clip_scope;
  out.loss_scale = gate_.loss_scale();
  out.applied_steps = counters_.applied_steps;
  out.skipped_steps = counters_.skipped_steps;
  out.step_times = counters_.times;
  out.clipped_steps = counters_.clipped_steps;
  out.world_size = spec().world_size;
  out.local_elements = plan_->map.elements();
  out.footprint = plan_->footprint;
  out.updates = counters_.updates;
  out.updated_elements = counters_.updated_elements;
  out.update_seconds = counters_.update_seconds;
  out.duplicates = counters_.duplicates;
  out.rejected_slots = counters_.rejected_slots;
  out.keeps_undo_state = KeepsUndoState(spec());
  out.durability = spec().durability;
  out.durable_every = spec().durable_every;
  if (made_.durable) out.durable_step = made_.durable->step;
  const ResidencyPlan& plan = plan_->residency;
  out.tiers = {.resident_bytes = plan.resident_bytes,
               .spilled_bytes = plan.spilled_bytes,
               .streamed_bytes = plan.streamed_bytes,
               .buffers = plan.buffers,
               .buffer_bytes = plan.buffer_bytes,
               .spill = store_->counters(),
               .point_written_bytes = points_ == nullptr ? 0 : points_->written_bytes(),
               .last_step_seconds = counters_.last_step_seconds,
               .mean_step_seconds = counters_.pace.mean_seconds(),
               .timed_steps = counters_.pace.steps()};
  if (plan_->map.has_window()) FillWindow(spec(), plan_->map, *weights_, &out.tiers);
  for (const Rank& rank : ranks_) {
    out.parked_slots += rank.slots.held_count() - rank.slots.pinned_count();
    if (rank.session == nullptr || rank.closed) continue;
    const Session& session = *rank.session;
    const bool live = session.Check().ok();
    WorkerSnapshot worker;
    worker.rank = session.identity().rank;
    worker.host = session.identity().host;
    worker.pid = session.identity().pid;
    worker.restart_count = session.identity().restart_count;
    worker.transport = session.transport_name();
    worker.lease_left_ms = live ? session.LeaseLeftMs(now) : 0;
    worker.last_step = rank.begun_step.value_or(0);
    worker.fetched_bytes = session.fetched_bytes();
    worker.pushed_bytes = session.pushed_bytes();
    worker.slots_held = rank.slots.held_count();
    out.workers.push_back(std::move(worker));
  }
  return out;
}

}  // namespace luwu
