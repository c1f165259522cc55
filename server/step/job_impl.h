// The implementation of Job, split over files by activity: job_create.cc (memory), job_load.cc and
// job_read.cc (masters), job_sessions.cc (ranks changing hands), job_slots.cc (what arrives),
// job_pipeline.cc (what a shard does next), job_room.cc (slots that have to be freed), job_steps.cc
// (begin, report), job_settle.cc (decision, publication), job_points.cc and job_restore.cc (what is
// on disk), job_window.cc (served copies), job_waits.cc (commit waiters, housekeeping),
// job_snapshot.cc.
//
// Locks: one for the job. Kernels, copies, checksums, callbacks, board updates and the closing of
// links happen without it; JobEffects carries what a locked section leaves to be done. The locks of
// sessions, boards, session table and update pool are leaves and may be taken under it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/wire/slot_trailer.h"
#include "server/session/session.h"
#include "server/session/session_table.h"
#include "server/step/job.h"
#include "server/step/job_effects.h"
#include "server/step/job_parts.h"
#include "server/step/job_shard.h"
#include "server/step/point_maker.h"
#include "server/step/shard_updater.h"
#include "server/step/step_gate.h"

namespace luwu {

class JobImpl final : public Job,
                      public SlotSink,
                      public StateListener,
                      public std::enable_shared_from_this<JobImpl> {
 public:
  JobImpl(std::unique_ptr<const JobPlan> plan, const Environment& environment, JobMemory memory,
          std::unique_ptr<StepReporter> reporter);
  ~JobImpl() override;
  // Once, before anybody else knows of it; then Restore when it goes on from a point.
  void Start();
  Status Restore(const persist::Point& point) LUWU_EXCLUDES(mutex_);

  const JobSpec& spec() const override { return plan_->options.spec; }
  const ShardMap& shard_map() const override { return plan_->map; }
  uint64_t epoch() const override { return plan_->options.epoch; }
  uint64_t current_step() const override LUWU_EXCLUDES(mutex_);
  bool loaded() const override LUWU_EXCLUDES(mutex_);
  std::string failure() const override LUWU_EXCLUDES(mutex_);

  Status Load(uint32_t layer, uint64_t shard, uint64_t offset,
              std::span<const float> values) override LUWU_EXCLUDES(mutex_, load_mutex_);
  Status FinishLoad(bool allow_missing) override LUWU_EXCLUDES(mutex_, load_mutex_);
  Status LoadState(const StatePlace& place, std::span<const float> values) override
      LUWU_EXCLUDES(mutex_, load_mutex_);
  Status FinishLoadAt(const StartPoint& start) override LUWU_EXCLUDES(mutex_, load_mutex_);
  StartPoint WhereItStands() const override LUWU_EXCLUDES(mutex_);
  Status Read(const ReadPlace& place, TimePoint deadline,
              const std::function<Status(const Piece&)>& sink) override LUWU_EXCLUDES(mutex_);

  StatusOr<std::shared_ptr<Session>> OpenSession(const WorkerIdentity& identity) override
      LUWU_EXCLUDES(mutex_);
  void CloseSession(const std::shared_ptr<Session>& session) override LUWU_EXCLUDES(mutex_);
  uint64_t open_sessions() const override LUWU_EXCLUDES(mutex_);

  StatusOr<BegunStep> BeginStep(Session& session, uint64_t step,
                                const std::vector<HyperParameters>& groups) override
      LUWU_EXCLUDES(mutex_);
  void AwaitCommit(const std::shared_ptr<Session>& session, uint64_t step, TimePoint deadline,
                   CommitCallback done) override LUWU_EXCLUDES(mutex_);
  Status MakePoint(uint64_t step) override LUWU_EXCLUDES(mutex_);
  Status StoreOpenStep(TimePoint deadline) override LUWU_EXCLUDES(mutex_);
  std::optional<persist::Point> durable_point() const override LUWU_EXCLUDES(mutex_);
  void Tick() override LUWU_EXCLUDES(mutex_);
  void Shutdown(const Status& why) override LUWU_EXCLUDES(mutex_);
  void Drain() override LUWU_EXCLUDES(mutex_);
  JobSnapshot Snapshot() const override LUWU_EXCLUDES(mutex_);

  // SlotSink, on the progress thread.
  void OnSlot(Session& session, uint32_t slot) override LUWU_EXCLUDES(mutex_);
  void OnWant(Session& session, uint32_t immediate) override LUWU_EXCLUDES(mutex_);
  void OnUnlinked(Session& session, const Status& why) override;

  // StateListener, on an I/O thread.
  void OnStateLoaded(uint32_t index) override LUWU_EXCLUDES(mutex_);
  void OnStateFailed(const Status& why) override LUWU_EXCLUDES(mutex_);

  // On an update thread.
  void RunTask(JobShard& shard) LUWU_EXCLUDES(mutex_);

 private:
  using Rank = JobRank;

  bool HasOwnSums() const { return SumsInHeld(spec()) || KeepsRunningSums(spec()); }
  const Node& self() const { return plan_->options.nodes[plan_->options.self]; }

  // job_load.cc
  Status CheckLoadable() const LUWU_REQUIRES(mutex_);
  Status EnterLoad() LUWU_EXCLUDES(mutex_);
  void LeaveLoad() LUWU_EXCLUDES(mutex_);
  Status CheckCoverage() LUWU_REQUIRES(load_mutex_) LUWU_EXCLUDES(mutex_);
  void PublishLoaded() LUWU_EXCLUDES(mutex_);
  JobShard& ShardForLoad(uint32_t index) LUWU_EXCLUDES(mutex_);

  // job_read.cc
  bool HalfWay(ShardMap::IndexRange range) const LUWU_REQUIRES(mutex_);
  Status PinLayer(uint32_t layer, TimePoint deadline, JobLayerPin* pin) LUWU_EXCLUDES(mutex_);
  Status ReadShard(const StateView& view, uint64_t from, uint64_t version,
                   const std::function<Status(const Piece&)>& sink) const;
  void UnpinLayer(uint32_t layer, const JobLayerPin& pin) LUWU_EXCLUDES(mutex_);

  // job_sessions.cc
  Status CheckTakeover(const Rank& rank, const WorkerIdentity& identity) const
      LUWU_REQUIRES(mutex_);
  Status VacateRank(uint32_t rank) LUWU_EXCLUDES(mutex_);
  void ResetRank(uint32_t rank, JobEffects* effects) LUWU_REQUIRES(mutex_);
  StatusOr<std::shared_ptr<Session>> SeatSession(const WorkerIdentity& identity)
      LUWU_EXCLUDES(mutex_);
  void EndSession(const std::shared_ptr<Session>& session, const Status& why) LUWU_REQUIRES(mutex_);
  // True while the session holds its rank and is live.
  bool IsCurrent(const Session& session) const LUWU_REQUIRES(mutex_);

  // job_slots.cc
  Status ReceiveSlot(Session& session, uint32_t slot, JobEffects* effects) LUWU_EXCLUDES(mutex_);
  StatusOr<bool> IsRepeat(const Rank& rank, uint32_t slot, const SlotTrailer& trailer)
      LUWU_REQUIRES(mutex_);
  Status Accept(const SlotTrailer& trailer, uint32_t slot, JobEffects* effects)
      LUWU_REQUIRES(mutex_);
  Status AcceptForShard(const SlotTrailer& trailer, uint32_t slot, uint32_t index, bool* parked)
      LUWU_REQUIRES(mutex_);
  void EndWithFault(Session& session, const Status& fault, JobEffects* effects)
      LUWU_REQUIRES(mutex_);

  // job_pipeline.cc
  void Advance(JobShard& shard, JobEffects* effects) LUWU_REQUIRES(mutex_);
  bool AwaitsReader(const JobShard& shard, JobShard::Activity next) const LUWU_REQUIRES(mutex_);
  void Submit(JobShard& shard, JobShard::Activity activity) LUWU_REQUIRES(mutex_);
  void PinSources(JobShard& shard) LUWU_REQUIRES(mutex_);
  JobTaskResult Compute(JobShard& shard) const;
  void EndTask(JobShard& shard, const JobTaskResult& result, JobEffects* effects)
      LUWU_REQUIRES(mutex_);
  void EndReady(JobShard& shard, const UpdateResult& result, JobEffects* effects)
      LUWU_REQUIRES(mutex_);
  void MarkReady(JobShard& shard, JobEffects* effects) LUWU_REQUIRES(mutex_);
  void ReleaseTaken(JobShard& shard, JobEffects* effects) LUWU_REQUIRES(mutex_);
  void ReleaseSlot(uint32_t rank, uint32_t slot, JobEffects* effects) LUWU_REQUIRES(mutex_);
  std::byte* BytesOf(const JobShard& shard, const Contribution& contribution) const
      LUWU_REQUIRES(mutex_);

  // job_room.cc
  void StartFold(JobShard& shard) LUWU_REQUIRES(mutex_);
  void StartCopy(JobShard& shard, const Contribution& contribution, uint32_t block)
      LUWU_REQUIRES(mutex_);
  void MakeRoom(uint32_t rank) LUWU_REQUIRES(mutex_);
  bool MakeRoomOnce(uint32_t rank) LUWU_REQUIRES(mutex_);
  void MakeRoomForAll() LUWU_REQUIRES(mutex_);
  bool WaitsForItself(uint32_t rank) const LUWU_REQUIRES(mutex_);
  void EndIfStuck(uint32_t rank, JobEffects* effects) LUWU_REQUIRES(mutex_);

  // job_steps.cc
  Status CheckBegin(const Session& session, uint64_t step) const LUWU_REQUIRES(mutex_);
  void ReportIfDone(JobEffects* effects) LUWU_REQUIRES(mutex_);
  void SendReport(JobEffects* effects) LUWU_REQUIRES(mutex_);

  // job_settle.cc
  void OnDecision(uint64_t step, const StatusOr<StepDecision>& decision) LUWU_EXCLUDES(mutex_);
  void CarryOut(const StepDecision& decision, JobEffects* effects) LUWU_REQUIRES(mutex_);
  void Fail(const std::string& culprit, JobEffects* effects) LUWU_REQUIRES(mutex_);
  void SettleAll(const StepDecision& decision, JobEffects* effects) LUWU_REQUIRES(mutex_);
  JobShard::Settle SettleOf(const JobShard& shard) const LUWU_REQUIRES(mutex_);
  void EndSettle(JobShard& shard, const UpdateResult& result, JobEffects* effects)
      LUWU_REQUIRES(mutex_);
  void TakeOver(JobShard& shard) LUWU_REQUIRES(mutex_);
  void PublishShard(JobShard& shard) LUWU_REQUIRES(mutex_);
  void PublishBoards(JobEffects* effects) LUWU_REQUIRES(mutex_);

  // job_window.cc
  void OnCopiesMoved() LUWU_EXCLUDES(mutex_);
  void NoteMoved(JobEffects* effects) LUWU_REQUIRES(mutex_);

  // job_points.cc
  bool IsBoundary(uint64_t step) const;
  void BeginPoint() LUWU_REQUIRES(mutex_);
  void CapturePoint(JobShard& shard) LUWU_REQUIRES(mutex_);
  void UnpinPoint(const PointItem& item) LUWU_EXCLUDES(mutex_);
  bool IsAhead() const LUWU_REQUIRES(mutex_);
  void OnPointStored(const persist::Point& point) LUWU_EXCLUDES(mutex_);
  void ReportDurable(uint64_t step) LUWU_EXCLUDES(mutex_);
  void OnDurable(uint64_t step, const Status& status) LUWU_EXCLUDES(mutex_);
  std::optional<uint64_t> DurableReportDue(TimePoint now) LUWU_REQUIRES(mutex_);
  bool IsDurableEnough(uint64_t step) const LUWU_REQUIRES(mutex_);
  Durability DurabilityOf(uint64_t step) const LUWU_REQUIRES(mutex_);

  // job_import.cc, job_restore.cc
  Status RestoreShards(const persist::Point& point, const std::vector<persist::ShardEntry>& entries)
      LUWU_EXCLUDES(mutex_);
  Status RestoreShard(const persist::Point& point, const persist::ShardEntry& entry)
      LUWU_EXCLUDES(mutex_);

  // job_waits.cc
  // The answer, or nothing while it has to wait.
  std::optional<StatusOr<CommitResult>> TryAnswer(const Session& session, uint64_t step) const
      LUWU_REQUIRES(mutex_);
  void SettleWaiters(JobEffects* effects) LUWU_REQUIRES(mutex_);
  void ForgivePause() LUWU_REQUIRES(mutex_);
  std::string DescribeLost() const LUWU_REQUIRES(mutex_);
  std::string DescribeOpen() const LUWU_REQUIRES(mutex_);
  std::string DescribeRankOpen(uint32_t rank) const LUWU_REQUIRES(mutex_);

  const std::unique_ptr<const JobPlan> plan_;
  const Environment env_;
  const MemoryReservation reservation_;            // given back after the memory has been freed
  const std::shared_ptr<StorageUse> storage_use_;  // null without a storage
  const std::unique_ptr<StateStore> store_;
  const std::unique_ptr<ServedCopies> weights_;
  const std::unique_ptr<PointMaker> points_;  // null without a storage
  const ShardUpdater updater_;
  const std::shared_ptr<StepReporter> reporter_;

  Mutex load_mutex_;  // one load or publication at a time; taken before mutex_

  mutable Mutex mutex_;
  CondVar changed_;  // a task has ended, or a step was published
  Status shutdown_ LUWU_GUARDED_BY(mutex_);
  JobState state_ LUWU_GUARDED_BY(mutex_) = JobState::kLoading;
  std::string failure_ LUWU_GUARDED_BY(mutex_);  // why the job is kFailed
  uint32_t loads_in_progress_ LUWU_GUARDED_BY(mutex_) = 0;
  std::deque<JobShard> shards_ LUWU_GUARDED_BY(mutex_);  // by local index
  std::vector<Rank> ranks_ LUWU_GUARDED_BY(mutex_);
  StepGate gate_ LUWU_GUARDED_BY(mutex_);
  JobSettling settling_ LUWU_GUARDED_BY(mutex_);
  TimePoint last_tick_ LUWU_GUARDED_BY(mutex_);
  TimePoint report_again_at_ LUWU_GUARDED_BY(mutex_);
  uint64_t report_pause_ms_ LUWU_GUARDED_BY(mutex_) = 0;
  Status report_failure_ LUWU_GUARDED_BY(mutex_);
  std::vector<uint64_t> published_ LUWU_GUARDED_BY(mutex_);  // the board's words
  std::vector<uint64_t> places_ LUWU_GUARDED_BY(mutex_);     // likewise; empty without a window
  OverflowPool overflow_ LUWU_GUARDED_BY(mutex_);
  const HeldSums held_;
  const HeldSums running_;
  JobPoints made_ LUWU_GUARDED_BY(mutex_);
  std::vector<JobCommitWaiter> waiters_ LUWU_GUARDED_BY(mutex_);
  // Ended sessions whose links Tick has to close.
  std::vector<std::shared_ptr<Session>> to_close_ LUWU_GUARDED_BY(mutex_);
  uint64_t in_flight_ LUWU_GUARDED_BY(mutex_) = 0;  // submitted tasks that have not ended
  JobCounters counters_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
