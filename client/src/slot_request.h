// One inbox slot on its way to a daemon: the transport request, the trailer, and the contribution
// it belongs to. There is one SlotRequest for every slot of every node, made at open; nothing is
// allocated per push.
//
// Completions arrive on the transport's progress thread (or inside the posting call) and take the
// session's monitor; everything but the trailer is guarded by it. The trailer and the slot's memory
// belong to whoever holds the slot.
#pragma once

#include <cstdint>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/segments.h"
#include "client/src/slot_ledger.h"
#include "common/transport/transport.h"
#include "common/wire/slot_trailer.h"

namespace luwu::client {

class SlotRequest;

// The slots of one contribution that are out, and what became of them.
struct SlotBatch {
  explicit SlotBatch(Fabric& fabric)
      : waiter(fabric.monitor()), outstanding(fabric.plan().nodes().size()) {}

  Waiter waiter;
  // Guarded by the monitor.
  std::vector<uint32_t> outstanding;  // per node
  uint32_t outstanding_total = 0;
  SlotRequest* failed = nullptr;  // to be sent again, a list
  Status error;                   // not to be repeated
  bool sent = false;

  // Of the call that owns the batch.
  std::vector<Segment> segments;  // sorted; for slots gathered straight from caller memory
};

class SlotRequest final : public transport::Request {
 public:
  SlotRequest(Fabric* fabric, uint32_t node, uint32_t slot)
      : fabric_(fabric), node_(node), slot_(slot) {}

  uint32_t node() const { return node_; }
  uint32_t slot() const { return slot_; }

  // Fills the memory of a slot that the caller holds. `shard` null: a close of all shards of the
  // layer on this node. The payload comes from the batch's segments or, with `in_place`, is there.
  struct Contents {
    SlotKey key;
    const ShardPlan* shard = nullptr;
    bool close = false;
    bool in_place = false;
  };
  void Fill(const Contents& contents, const SlotBatch& batch, const Link& link);
  // Sends the filled slot. The caller has counted it in with BeginPost.
  void Post(const SlotBatch& batch, const Link& link);
  void BeginPost(const MonitorLock&, SlotBatch* batch);
  // The board shows that the daemon has had it, whatever became of the request.
  void AcceptAsDelivered(const MonitorLock& lock);
  // Repeats the notification of a delivered slot after a relink; the ledger has marked it.
  void PostRenotify(const Link& link);

  void Complete(const Status& status) override;

  SlotRequest* next_failed = nullptr;
  uint32_t attempts = 0;
  TimePoint retry_at;
  const ShardPlan* shard() const { return contents_.shard; }
  uint32_t layer() const { return contents_.key.layer; }

 private:
  bool CanGather(const SlotBatch& batch) const;
  void Seal(uint64_t payload_bytes, uint32_t payload_crc, bool crc_is_set);
  void PostGathered(const SlotBatch& batch, const Link& link, uint64_t payload_bytes);
  uint64_t PayloadBytes() const;
  DType wire() const { return fabric_->plan().spec().gradient_dtype; }

  Fabric* const fabric_;
  const uint32_t node_;
  const uint32_t slot_;
  SlotBatch* batch_ = nullptr;  // null: a repeated notification
  Contents contents_;
  SlotTrailer trailer_ = {};
  bool gathered_ = false;  // payload goes out straight from caller memory
};

}  // namespace luwu::client
