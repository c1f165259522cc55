// Brings jobs back after a restart (docs/DURABILITY.md, "Coming back"). On the lead it carries out
// the rounds: one for every job that is recovering here, that another node asks for, or that is to
// go back to a checkpoint. On other nodes it asks the lead for them, again and again, until the
// lead has come.
//
// One thread, "luwu-recover", so that rounds follow each other: a node that stands still delays
// them by its calls' deadlines. Answers are logged; what a job waits for is in its status.
//
// A round is of a job, not of a name: it ends when the job is deleted, whatever has the name then.
//
// Owned by the daemon, which stops it before the registry goes. Begin and Restore from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/cluster/recovery_round.h"
#include "server/service/caller.h"
#include "server/service/job_registry.h"
#include "server/service/peer_client.h"

namespace luwu {

class RecoveryDriver {
 public:
  RecoveryDriver(JobRegistry* registry, PeerClient* peers);
  ~RecoveryDriver();

  void Start();
  // Ends what waits. The peer client is shut down first, or this waits for its deadlines.
  void Stop() LUWU_EXCLUDES(mutex_);

  struct Request {
    std::string job;
    uint64_t epoch = 0;         // that the node knows the job by
    std::string node;           // that asks
    bool just_started = false;  // what it has may be new to the lead
  };
  // On the lead: a node wants the job rolled back. Returns at once. A job that was given up gets
  // another round when the node has just started. Errors of JobRegistry::CheckRecoverable.
  Status Begin(const Request& request) LUWU_EXCLUDES(mutex_);

  // On the lead: rolls the job back to a checkpoint, and waits until every node serves it. The
  // target that was reached. kNotFound without stopping the job, or because it was deleted
  // meanwhile, kDeadline naming what it waits for (it goes on, as when the caller goes), kState
  // while another checkpoint of the job is being restored.
  StatusOr<persist::Point> Restore(const std::string& job, const std::string& checkpoint,
                                   const Caller& caller) LUWU_EXCLUDES(mutex_);

 private:
  struct Active {
    JobKey job;
    uint64_t epoch = 0;  // of the round
    RecoveryRound round;
    std::string told;  // the reason that was logged last
    TimePoint not_before = {};
  };
  // A checkpoint that somebody wants, until it has been gone back to.
  struct Wish {
    uint64_t lineage = 0;  // of the job
    std::string checkpoint;
    std::string waits_for;  // in words
    std::optional<StatusOr<persist::Point>> result;
  };

  // When the lead was asked about a job, and whether it has ever heard that.
  struct Asked {
    TimePoint at = {};
    bool heard = false;
  };

  void Run();
  bool Pause(uint64_t ms) LUWU_EXCLUDES(mutex_);
  void BeginRounds() LUWU_EXCLUDES(mutex_);
  void StartRound(const JobKey& job, std::string checkpoint, std::vector<DoubtfulPoint> doubtful,
                  uint64_t pause_ms);
  // The job may have been deleted since.
  std::map<std::string, JobKey> TakeBegun() LUWU_EXCLUDES(mutex_);
  // True while there is something to do at once.
  bool Advance(Active& active);
  void Ask(Active& active);
  void Prepare(Active& active, const std::vector<uint32_t>& others, bool self);
  void Conclude(const Active& active) LUWU_EXCLUDES(mutex_);
  // For status, and for who waits for a checkpoint.
  std::string DescribeAsked(const RecoveryRound& round) const;
  void NoteWait(const Active& active, const std::string& what) LUWU_EXCLUDES(mutex_);
  void AskLead();
  void AskLeadAbout(const AbsentJob& job, Asked* asked);
  Status CheckCheckpoint(const DescribedJob& job, const std::string& checkpoint,
                         const Caller& caller);

  JobRegistry* const registry_;
  PeerClient* const peers_;
  std::map<std::string, Active> active_;  // the thread's own
  // Restores that were cut, by lineage and checkpoint, and turned out to be impossible: a storage
  // that has failed cannot forget them.
  std::set<std::pair<uint64_t, std::string>> impossible_;  // likewise
  std::map<std::string, Asked> asked_;                     // likewise, on other nodes than the lead
  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ LUWU_GUARDED_BY(mutex_) = false;
  bool wanted_ LUWU_GUARDED_BY(mutex_) = false;  // something has been asked for
  // Jobs that a node asked for, with the epoch it knows them by.
  std::map<std::string, uint64_t> begun_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, Wish> wishes_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
