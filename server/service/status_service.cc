#include "server/service/status_service.h"

#include <algorithm>

namespace luwu {
namespace {

static_assert(int(Severity::kOk) == v1::SEVERITY_OK);
static_assert(int(Severity::kWarn) == v1::SEVERITY_WARN);
static_assert(int(Severity::kErr) == v1::SEVERITY_ERR);

const char* StateName(JobState state) {
  switch (state) {
    case JobState::kLoading:
      return "loading";
    case JobState::kTraining:
      return "training";
    case JobState::kFailed:
      return "failed";
  }
  return "unknown";
}

void FillWorker(const WorkerSnapshot& worker, v1::WorkerStatus* out) {
  out->set_rank(worker.rank);
  out->set_host(worker.host);
  out->set_pid(worker.pid);
  out->set_restart_count(worker.restart_count);
  out->set_transport(worker.transport);
  out->set_lease_left_ms(worker.lease_left_ms);
  out->set_last_step(worker.last_step);
  out->set_fetched_bytes(worker.fetched_bytes);
  out->set_pushed_bytes(worker.pushed_bytes);
  out->set_slots_held(worker.slots_held);
}

void FillTiers(const TierSnapshot& tiers, v1::JobTiers* out) {
  out->set_resident_bytes(tiers.resident_bytes);
  out->set_spilled_bytes(tiers.spilled_bytes);
  out->set_streamed_bytes(tiers.streamed_bytes);
  out->set_buffers(tiers.buffers);
  out->set_buffer_bytes(tiers.buffer_bytes);
  out->set_loads(tiers.spill.loads);
  out->set_read_ahead(tiers.spill.read_ahead);
  out->set_wasted(tiers.spill.wasted);
  out->set_waits(tiers.spill.waits);
  out->set_read_bytes(tiers.spill.read_bytes);
  out->set_written_bytes(tiers.spill.written_bytes);
  out->set_busy_seconds(tiers.spill.busy_seconds);
  out->set_point_written_bytes(tiers.point_written_bytes);
  out->set_last_step_seconds(tiers.last_step_seconds);
  out->set_mean_step_seconds(tiers.mean_step_seconds);
  out->set_timed_steps(tiers.timed_steps);
  v1::CopyWindow& window = *out->mutable_window();
  window.set_slots(tiers.window_slots);
  window.set_slot_bytes(tiers.window_slot_bytes);
  window.set_copies(tiers.window_copies);
  window.set_version_bytes(tiers.window_version_bytes);
  window.set_wants(tiers.window.wants);
  window.set_read_bytes(tiers.window.read_bytes);
  window.set_written_bytes(tiers.window.written_bytes);
}

void FillJob(const JobSnapshot& job, v1::JobStatus* out) {
  out->set_name(job.name);
  out->set_epoch(job.epoch);
  out->set_state(StateName(job.state));
  out->set_failure(job.failure);
  out->set_current_step(job.current_step);
  if (job.last_outcome != Outcome::kUnspecified) {
    out->set_last_outcome(std::string(OutcomeName(job.last_outcome)));
  }
  out->set_applied_steps(job.applied_steps);
  out->set_skipped_steps(job.skipped_steps);
  out->set_world_size(job.world_size);
  out->set_local_elements(job.local_elements);
  out->set_state_bytes(job.footprint.state_bytes);
  out->set_served_bytes(job.footprint.served_bytes);
  out->set_inbox_bytes(job.footprint.inbox_bytes);
  out->set_overflow_bytes(job.footprint.overflow_bytes);
  out->set_held_bytes(job.footprint.held_bytes);
  out->set_table_bytes(job.footprint.table_bytes);
  out->set_update_mode(std::string(UpdateModeName(job.update_mode)));
  out->set_optimizer(std::string(OptimizerName(job.optimizer.kind)));
  out->set_state_precision(std::string(StatePrecisionName(job.optimizer.state_precision)));
  out->set_master_format(std::string(MasterFormatName(job.optimizer.master_format)));
  out->set_clip_scope(std::string(ClipScopeName(job.clip_scope)));
  out->set_grad_norm(job.grad_norm);
  out->set_loss_scale(job.loss_scale);
  out->set_clipped_steps(job.clipped_steps);
  out->set_updates(job.updates);
  out->set_updated_elements(job.updated_elements);
  out->set_update_seconds(job.update_seconds);
  out->set_duplicates(job.duplicates);
  out->set_rejected_slots(job.rejected_slots);
  out->set_parked_slots(job.parked_slots);
  out->set_durability(std::string(DurabilityName(job.durability)));
  out->set_durable_every(job.durable_every);
  if (job.durable_step) out->set_durable_step(*job.durable_step);
  out->set_staging_bytes(job.footprint.staging_bytes);
  FillTiers(job.tiers, out->mutable_tiers());
  out->set_undo(job.keeps_undo_state);
  for (const WorkerSnapshot& worker : job.workers) FillWorker(worker, out->add_workers());
}

void FillAbsent(const AbsentJob& job, v1::JobStatus* out) {
  out->set_name(job.name);
  out->set_epoch(job.epoch);
  out->set_state(job.phase == JobPhase::kLost ? "lost" : "recovering");
  out->set_detail(job.detail);
  out->set_loss_scale(1);
}

void FillStorage(const persist::StorageSnapshot& storage, v1::StorageStatus* out) {
  out->set_path(storage.path);
  out->set_engine(storage.engine == persist::Engine::kExtents ? "extents" : "rocksdb_values");
  out->set_direct(storage.direct);
  out->set_budget_bytes(storage.budget_bytes);
  out->set_used_bytes(storage.used_bytes);
  out->set_allocated_bytes(storage.allocated_bytes);
  out->set_free_bytes(storage.free_bytes);
  out->set_read_bytes(storage.read_bytes);
  out->set_written_bytes(storage.written_bytes);
  out->set_full(storage.full.value_or(""));
  out->set_waiting_writes(storage.waiting_writes);
  out->set_failed(storage.failed);
  out->set_scrubbed_bytes(storage.scrubbed_bytes);
  out->set_scrub_cycles(storage.scrub_cycles);
  out->mutable_damaged()->Add(storage.damaged.begin(), storage.damaged.end());
}

void FillIdentity(const IdentityUse& use, v1::IdentityStatus* out) {
  out->set_identity(use.identity);
  out->set_role(std::string(RoleName(use.role)));
  out->set_sessions(use.sessions);
  out->set_sessions_max(use.quota.sessions);
  out->set_slots(use.slots);
  out->set_slots_max(use.quota.slots);
  out->set_jobs(use.owned.jobs);
  out->set_memory_bytes(use.owned.memory_bytes);
  out->set_memory_bytes_max(use.quota.memory_bytes);
}

void FillStatus(const DaemonSnapshot& snapshot, v1::DaemonStatus* out) {
  out->set_node(snapshot.node);
  out->set_version(snapshot.version);
  out->set_pid(snapshot.pid);
  out->set_uptime_ms(snapshot.uptime_ms);
  out->set_overall(static_cast<v1::Severity>(snapshot.overall));
  for (const StatusCheck& check : snapshot.checks) {
    v1::Check* added = out->add_checks();
    added->set_name(check.name);
    added->set_severity(static_cast<v1::Severity>(check.severity));
    added->set_summary(check.summary);
    added->set_hint(check.hint);
    added->set_since_unix_ms(check.since_unix_ms);
  }
  out->set_memory_budget_bytes(snapshot.memory_budget_bytes);
  out->set_memory_used_bytes(snapshot.memory_used_bytes);
  for (const JobSnapshot& job : snapshot.jobs) FillJob(job, out->add_jobs());
  for (const AbsentJob& job : snapshot.absent_jobs) FillAbsent(job, out->add_jobs());
  if (snapshot.storage) FillStorage(*snapshot.storage, out->mutable_storage());
  out->set_update_threads(snapshot.update_threads);
  out->set_kernel(snapshot.kernel);
  for (const IdentityUse& use : snapshot.identities) FillIdentity(use, out->add_identities());
}

// Takes out what is about jobs that the caller may not touch.
void Restrict(const AccessGate& gate, const grpc::AuthContext& caller, DaemonSnapshot* snapshot) {
  const auto hidden = [&](const std::string& job) { return !gate.MaySee(caller, job); };
  std::erase_if(snapshot->jobs, [&](const JobSnapshot& job) { return hidden(job.name); });
  std::erase_if(snapshot->absent_jobs, [&](const AbsentJob& job) { return hidden(job.name); });
  std::erase_if(snapshot->checks,
                [&](const StatusCheck& check) { return !check.job.empty() && hidden(check.job); });
  std::erase_if(snapshot->identities,
                [&](const IdentityUse& use) { return !gate.MaySeeUse(caller, use.identity); });
  snapshot->overall = Severity::kOk;
  for (const StatusCheck& check : snapshot->checks) {
    snapshot->overall = std::max(snapshot->overall, check.severity);
  }
}

}  // namespace

grpc::ServerUnaryReactor* StatusServiceImpl::GetStatus(grpc::CallbackServerContext* context,
                                                       const v1::GetStatusRequest*,
                                                       v1::GetStatusResponse* response) {
  v1::DaemonStatus* const status = response->mutable_status();
  DaemonSnapshot snapshot = services_.status->Collect();
  if (services_.access != nullptr) {
    Restrict(*services_.access, *context->auth_context(), &snapshot);
  }
  FillStatus(snapshot, status);
  for (v1::JobStatus& job : *status->mutable_jobs()) {
    job.set_stored_bytes(services_.jobs->StoredBytes(job.name()));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace luwu
