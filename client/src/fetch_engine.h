// Brings one version of a layer into caller memory, or shows where it lies.
//
// Fetch waits until each shard of the version is on its board, then copies it: from mapped weights
// straight into the segments, or with one-sided reads, many shards in flight, into the segments or
// through staging when the dtype differs or the shard's pieces are scattered. Every shard's header
// is checked after its payload; the payload's CRC too when the options say so, or when the worker
// has closed the layer (see StepProgress::IsProtected). By default a part of a shard is read
// without the rest of it and without its CRC: the header alone proves the version.
//
// Of a node whose served copies are not all in memory, the copies that are not there are asked for,
// some ahead; one that goes away while it is read is asked for again.
//
// Runs on the caller's thread or the fetch lane, several at once. No wait is longer than the
// deadline, the life of the session, or the patience with a node that is down. When it returns,
// nothing writes into the caller's memory any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/context_pool.h"
#include "client/src/fabric.h"
#include "client/src/read_unit.h"
#include "client/src/segments.h"
#include "common/base/memory.h"

namespace luwu::client {

struct ViewPiece {
  const std::byte* data = nullptr;
  ShardRange range;
};

// Working memory of one fetch.
struct FetchContext {
  explicit FetchContext(Fabric& fabric);
  Waiter waiter;
  std::vector<Segment> segments;  // sorted
  std::vector<std::unique_ptr<ReadUnit>> units;
  Mapping staging;
  std::vector<std::shared_ptr<Link>> view_links;  // per node, during a view call
  std::vector<ViewPiece> view_pieces;
};

struct FetchCall {
  uint32_t layer = 0;
  uint64_t version = 0;
  TimePoint deadline;
};

class FetchEngine {
 public:
  explicit FetchEngine(Fabric* fabric) : fabric_(fabric) {}

  using Loan = ContextPool<FetchContext>::Loan;
  Loan TakeContext();
  // Staging memory for reads over tcp, before the first step.
  Status Warm();

  // Into `context.segments` (prepared).
  Status Fetch(const FetchCall& call, FetchContext& context);
  // Where the layer lies. kUnsupported unless all nodes are reached by shm. `pieces` holds the
  // layer's runs; their number is fixed by the placement.
  Status View(const FetchCall& call, FetchContext& context, std::vector<ViewPiece>* pieces);
  uint64_t ViewPieces(uint32_t layer) const { return fabric_->plan().layers()[layer].runs.size(); }

  // Waits until version 0 or later of every layer is readable.
  Status AwaitLoaded(TimePoint deadline);

 private:
  // One fetch in progress.
  struct Job {
    FetchCall call;
    FetchContext* context = nullptr;
    const LayerPlan* plan = nullptr;
    size_t next_shard = 0;
    std::vector<const ShardPlan*> again;  // have gone from the window while they were read
    uint32_t blocked_node = 0;            // whose version or link is waited for
    const ShardPlan* late = nullptr;      // shard whose version is not there yet
    const ShardPlan* unloaded = nullptr;  // ... is there, but not in the window
  };
  struct Action;

  Status AddStaging(FetchContext& context, uint64_t shard_bytes);
  Status Run(Job& job);
  Status NextAction(const MonitorLock& lock, Job& job, Action* action);
  bool TakeUnit(const MonitorLock& lock, Job& job, Action* action, Status* error,
                TimePoint* wake_at);
  const ShardPlan* NextShard(Job& job);
  void CountTaken(Job& job);
  bool TakeShard(const MonitorLock& lock, Job& job, Action* action, Status* error,
                 TimePoint* wake_at);
  ReadUnit::Plan PlanRead(const MonitorLock& lock, const Job& job, const ShardPlan& shard,
                          const CopyPlace& place);
  Status Perform(Job& job, const Action& action);
  Status CopyMapped(Job& job, const Action& action);
  Status AcceptUnit(Job& job, ReadUnit& unit);
  void Drain(Job& job);
  CopyPlace FixedPlace(const FetchCall& call, const ShardPlan& shard) const;
  Status CollectView(const MonitorLock& lock, const Job& job, std::vector<ViewPiece>* pieces,
                     std::vector<std::shared_ptr<Link>>* links);

  // ---- fetch_window.cc
  // Nothing: it is not in the node's window, and has to be asked for.
  StatusOr<std::optional<CopyPlace>> FindPlace(const MonitorLock& lock, const FetchCall& call,
                                               const ShardPlan& shard);
  bool TakeWishes(const MonitorLock& lock, Job& job, const ShardPlan& first, Action* action,
                  TimePoint* wake_at);
  void SendWishes(const Action& action);
  void NoteGone(Job& job, const ShardPlan& shard, uint64_t residence);

  // ---- fetch_check.cc: what may be read, and whether what was read is right --------------------
  // A frozen layer has one content, stored as version 0.
  uint64_t StoredVersion(const FetchCall& call) const {
    return fabric_->plan().layers()[call.layer].trainable ? call.version : 0;
  }
  // True when `shard` of the version can be read now; an error when it never will be.
  StatusOr<bool> IsReadable(const MonitorLock& lock, const FetchCall& call, const ShardPlan& shard);
  Status DeadlineError(const MonitorLock& lock, const Job& job);
  // `whole`: all of the shard is wanted, so that its CRC costs no byte more.
  bool WantsCrc(const MonitorLock& lock, const FetchCall& call, const ShardPlan& shard, bool whole);
  ConstByteSpan MappedPayload(const ShardPlan& shard, const CopyPlace& place,
                              const Link& link) const;
  ShardHeader MappedHeader(const CopyPlace& place, const Link& link) const;
  // Judges bytes that have been copied. `payload` empty: its CRC is not wanted. False: they were
  // going from the window.
  StatusOr<bool> CheckCopy(const FetchCall& call, const ShardPlan& shard, const CopyPlace& place,
                           const ShardHeader& header, ConstByteSpan payload);
  std::string Describe(const FetchCall& call, const ShardPlan& shard) const;
  DType served() const { return fabric_->plan().spec().served_dtype; }

  Fabric* const fabric_;
  ContextPool<FetchContext> contexts_;
};

}  // namespace luwu::client
