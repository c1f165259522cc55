// Brings gradients into the daemons' inboxes: takes credits, fills slots, sends them, repeats what
// a failed link swallowed, and keeps the step's bookkeeping.
//
// Push, CloseLayer and the in-place calls run on the caller's thread or the push lane; several may
// run at once (two contributions to one layer take turns). Waits end at the deadline, at the end of
// the session, or when a node is lost. After an error the same call may be repeated: what has
// arrived is not sent again, and what is in doubt is sent under its old key.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/src/context_pool.h"
#include "client/src/fabric.h"
#include "client/src/slot_request.h"

namespace luwu::client {

// Working memory of one push.
struct PushContext {
  explicit PushContext(Fabric& fabric) : batch(fabric), cursors(fabric.plan().nodes().size()) {}
  SlotBatch batch;
  std::vector<uint32_t> cursors;  // per node: next of its shards of the layer
};

struct PushCall {
  uint32_t layer = 0;
  bool close = false;
  TimePoint deadline;
  bool queued = false;  // runs on the lane, was counted by StepProgress::Queue
};

// A contribution whose bytes come part by part, in the order of the shards.
class PushParts {
 public:
  // Shards [first, end) of the layer.
  struct Shards {
    uint32_t first = 0;
    uint32_t end = 0;
  };
  virtual ~PushParts() = default;
  // Waits for the next part: `segments` (sorted) hold what there is of these shards. What it gave
  // before is no longer needed. False: that was the last.
  virtual StatusOr<bool> Next(std::vector<Segment>* segments, Shards* shards) = 0;
};

// Memory of reserved slots, between in-place begin and end.
struct SlotRun {
  explicit SlotRun(Fabric& fabric) : batch(fabric) {}
  struct Piece {
    SlotRequest* request = nullptr;
    const ShardPlan* shard = nullptr;
    std::shared_ptr<Link> link;  // keeps the memory mapped
    ByteSpan payload;
  };
  uint32_t layer = 0;
  bool close = false;
  uint32_t micro_step = 0;
  uint64_t step = 0;
  std::vector<Piece> pieces;
  SlotBatch batch;
};

class PushEngine {
 public:
  explicit PushEngine(Fabric* fabric);

  using Loan = ContextPool<PushContext>::Loan;
  Loan TakeContext();

  // Gives `context.batch.segments` (prepared and covering) as the layer's next contribution.
  Status Push(const PushCall& call, PushContext& context);
  // The same, with the segments of one part after the other. Repeated after an error, it must give
  // the same bytes.
  Status Push(const PushCall& call, PushContext& context, PushParts& parts);
  // Closes without payload.
  Status CloseLayer(const PushCall& call, PushContext& context);

  // Reserves up to `pieces_max` slots for the shards from element `offset` on.
  StatusOr<std::unique_ptr<SlotRun>> BeginInPlace(const PushCall& call, uint64_t offset,
                                                  uint32_t pieces_max);
  // Sends what was filled, without waiting. True when nothing is left to be waited for.
  bool SendInPlace(SlotRun& run);
  // Ends a run of which nothing was sent; its shards may be reserved again.
  void AbandonInPlace(SlotRun& run);
  // Waits for the rest and ends the run.
  Status FinishInPlace(SlotRun& run, TimePoint deadline);

  // Refuses a push that could not succeed. For asynchronous calls, before they are queued.
  Status Queue(uint32_t layer, bool close);
  // A queued push was given up before it ran.
  void Unqueue(uint32_t layer, bool close);
  // A queued push has ended: commits need not wait for it any more.
  void EndQueued();

  // After a relink: repeats notifications that the old link may have swallowed.
  void Renotify(uint32_t node);

 private:
  // One contribution in progress.
  struct Job {
    const LayerPlan* plan = nullptr;
    PushKind kind = PushKind::kNone;
    PushCall call;
    uint64_t step = 0;
    uint32_t micro_step = 0;
    SlotBatch* batch = nullptr;
    PushParts::Shards shards = {0, UINT32_MAX};  // what may be sent now
    std::vector<uint32_t>* cursors = nullptr;    // null: nothing new, only what is out
    size_t next_node = 0;                        // where the search goes on
    uint32_t blocked_node = 0;                   // whose slot or link is waited for
  };
  struct Action;  // what to do next

  Status Run(Job& job);
  Status NextAction(const MonitorLock& lock, Job& job, Action* action);
  bool TakeFailed(const MonitorLock& lock, Job& job, Action* action, Status* error,
                  TimePoint* wake_at);
  bool TakeNew(const MonitorLock& lock, Job& job, Action* action, Status* error);
  Status DeadlineError(const MonitorLock& lock, const Job& job);
  Status NoSlotError(const MonitorLock& lock, uint32_t layer, const ShardPlan& shard);
  void Perform(Job& job, const Action& action);
  // After an error: nothing of the batch is in flight when it returns.
  void Drain(SlotBatch& batch);

  Status AwaitTurn(const MonitorLock& lock, const PushCall& call, Waiter& waiter);
  Status Start(const PushCall& call, PushKind kind, Waiter& waiter, Job* job);
  Status Execute(const PushCall& call, PushKind kind, PushContext& context,
                 PushParts* parts = nullptr);
  Status RunParts(Job& job, PushContext& context, PushParts& parts);
  // In place: reserves a slot for one more shard; false when there is none now.
  StatusOr<bool> Reserve(const MonitorLock& lock, SlotRun& run, const ShardPlan& shard);
  Status ReserveRun(SlotRun& run, const Job& job, uint32_t first_shard, uint32_t pieces_max);

  Fabric* const fabric_;
  std::vector<std::vector<std::unique_ptr<SlotRequest>>> requests_;  // per node and slot
  ContextPool<PushContext> contexts_;
};

}  // namespace luwu::client
