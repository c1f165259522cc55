// One worker's session on this node: secret, lease, inbox, board, data link. Created by its job;
// found by id through the SessionTable. Notifications of its link (slot numbers) go to the
// SlotSink, which is the job.
//
// A session is live until it ends, once: by a fault of the worker's own (the link stays, so that
// the worker reads the fault from its board), or because it was replaced, closed or expired
// (fenced: the link is closed). Ending it is the job's business; everyone else asks Check().
//
// Threads: any, except where stated.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/transport/connect.h"
#include "common/transport/region.h"
#include "common/transport/transport.h"
#include "server/session/board_writer.h"
#include "server/session/worker_identity.h"

namespace luwu {

class Job;
class Session;

// Receives the doorbells of a session, on the data plane's progress thread.
class SlotSink {
 public:
  virtual ~SlotSink() = default;
  virtual void OnSlot(Session& session, uint32_t slot) = 0;
  // A wish (common/wire/window.h), unchecked.
  virtual void OnWant(Session& session, uint32_t immediate) = 0;
  virtual void OnUnlinked(Session& session, const Status& why) = 0;
};

// What a job gives a new session.
struct SessionOptions {
  uint64_t id = 0;
  WorkerIdentity identity;
  std::string job_name = {};
  std::weak_ptr<Job> job;
  SlotSink* sink = nullptr;  // outlives the session's link: the job closes it first
  const Clock* clock = nullptr;
  uint32_t lease_ms = 0;
  BoardShape board;
  std::shared_ptr<transport::LocalRegion> weights;
  std::shared_ptr<transport::LocalRegion> inbox;
};

class Session final : public transport::LinkEvents {
 public:
  explicit Session(SessionOptions options);
  // The link has been closed by then (CHECKed).
  ~Session() override;

  uint64_t id() const { return options_.id; }
  const Secret& secret() const { return secret_; }
  const WorkerIdentity& identity() const { return options_.identity; }
  const std::string& job_name() const { return options_.job_name; }
  uint32_t slots() const { return options_.board.slots; }
  // Null once the job has been deleted.
  std::shared_ptr<Job> job() const { return options_.job.lock(); }

  // ---- control plane (services) ----------------------------------------------------------------
  // OK while live; else what every call of this session answers: the worker's own fault, or
  // kFenced saying how the session ended.
  Status Check() const LUWU_EXCLUDES(mutex_);
  // Remembers what the client exposes (exactly its board) and over how many tcp connections it
  // will dial; answers what this node exposes. May be repeated before a new dial.
  StatusOr<std::vector<transport::RegionDescriptor>> SetClientRegions(
      const std::vector<transport::RegionDescriptor>& regions, uint32_t connections)
      LUWU_EXCLUDES(mutex_);
  // Heartbeat: the lease begins anew. Fails as Check() does.
  Status Renew() LUWU_EXCLUDES(mutex_);

  // ---- acceptor (SessionTable), on the progress thread
  // ------------------------------------------- kState before SetClientRegions; fails as Check()
  // does.
  StatusOr<transport::SessionTerms> Terms() const LUWU_EXCLUDES(mutex_);
  // Takes the endpoint and rewrites the whole board, or leaves it to the caller and returns false
  // when the session has been fenced in the meantime.
  bool Link(std::unique_ptr<transport::Endpoint>& endpoint) LUWU_EXCLUDES(mutex_);
  void OnNotify(uint32_t immediate) override;
  void OnDisconnect(const Status& why) override;

  // ---- the job
  // ----------------------------------------------------------------------------------- Ends the
  // session; the first end stays. True when this call ended it.
  bool EndWithFault(const Status& fault) LUWU_EXCLUDES(mutex_);
  bool EndFenced(const Status& why) LUWU_EXCLUDES(mutex_);
  // Closes the link for good and frees it. Not on the progress thread.
  void CloseLink() LUWU_EXCLUDES(mutex_, close_mutex_);
  // Frees endpoints of earlier links. Not on the progress thread.
  void ReapLinks() LUWU_EXCLUDES(mutex_);
  // The worker's slots; valid during OnSlot.
  ByteSpan inbox() const LUWU_EXCLUDES(mutex_);
  // After the link is closed: lets go of the inbox memory.
  void DropInbox() LUWU_EXCLUDES(mutex_);

  // The lease ends later: this daemon could not hear heartbeats for so long.
  void ExtendLease(Milliseconds by) LUWU_EXCLUDES(mutex_);
  bool LeaseExpired(TimePoint now) const LUWU_EXCLUDES(mutex_);
  uint64_t LeaseLeftMs(TimePoint now) const LUWU_EXCLUDES(mutex_);
  // When the session ended or, while it is live, `now`.
  TimePoint ended_at(TimePoint now) const LUWU_EXCLUDES(mutex_);

  enum class LinkState : uint8_t { kNever, kUp, kDown };
  LinkState link_state() const LUWU_EXCLUDES(mutex_);
  // "shm", "tcp", "verbs", or "" while not linked.
  std::string transport_name() const LUWU_EXCLUDES(mutex_);
  // True once the client has been told of its inbox.
  bool regions_exchanged() const LUWU_EXCLUDES(mutex_);
  bool fenced() const LUWU_EXCLUDES(mutex_);

  BoardWriter& board() { return board_; }

  void CountPushed(uint64_t bytes) { pushed_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t pushed_bytes() const { return pushed_bytes_.load(std::memory_order_relaxed); }
  // What the worker has read over tcp, shard headers included, over all its links; 0 over shm.
  uint64_t fetched_bytes() const LUWU_EXCLUDES(mutex_);

 private:
  Status CheckLocked() const LUWU_REQUIRES(mutex_);
  bool End(const Status& why, bool fenced) LUWU_EXCLUDES(mutex_);
  void RetireLink() LUWU_REQUIRES(mutex_);

  SessionOptions options_;  // constant after construction
  const Secret secret_;
  BoardWriter board_;
  std::atomic<uint64_t> pushed_bytes_{0};

  Mutex close_mutex_;  // one CloseLink at a time; the second one returns when the link is closed
  mutable Mutex mutex_;
  Status end_ LUWU_GUARDED_BY(mutex_);  // OK while live
  TimePoint ended_at_ LUWU_GUARDED_BY(mutex_);
  TimePoint lease_end_ LUWU_GUARDED_BY(mutex_);
  bool fenced_ LUWU_GUARDED_BY(mutex_) = false;  // no new link
  bool exchanged_ LUWU_GUARDED_BY(mutex_) = false;
  uint32_t connections_ LUWU_GUARDED_BY(mutex_) = 1;
  std::shared_ptr<transport::LocalRegion> inbox_ LUWU_GUARDED_BY(mutex_);
  LinkState link_state_ LUWU_GUARDED_BY(mutex_) = LinkState::kNever;
  std::shared_ptr<transport::Endpoint> endpoint_ LUWU_GUARDED_BY(mutex_);
  // Of earlier links, until nobody posts through them any more.
  std::vector<std::shared_ptr<transport::Endpoint>> retired_ LUWU_GUARDED_BY(mutex_);
  uint64_t fetched_before_ LUWU_GUARDED_BY(mutex_) = 0;  // over earlier links
};

}  // namespace luwu
