// One shard being read from a daemon over a link without mapped memory: the payload range, then, on
// the same lane and therefore later, the header that vouches for it. Units are made once per fetch
// context and reused; completions take the session's monitor, which guards all but the bytes.
#pragma once

#include <cstdint>

#include "client/src/fabric.h"
#include "common/base/bytes.h"
#include "common/transport/transport.h"
#include "common/wire/shard_header.h"

namespace luwu::client {

// Where a served copy lies in a node's weights region.
struct CopyPlace {
  uint64_t payload_offset = 0;
  uint64_t header_offset = 0;
  uint64_t residence = 0;  // which its header must name; 0 without a window
};

class ReadUnit {
 public:
  enum class State : uint8_t { kFree, kPosted, kArrived, kFailed };

  ReadUnit(Fabric* fabric, Waiter* waiter) : fabric_(fabric), waiter_(waiter) {}
  ReadUnit(const ReadUnit&) = delete;
  ReadUnit& operator=(const ReadUnit&) = delete;

  // What is read and where to. Set by the unit's user before BeginPost.
  struct Plan {
    const ShardPlan* shard = nullptr;
    CopyPlace place;
    ShardRange range;     // elements within the layer: the shard, or a part of it
    ByteSpan target;      // exactly the range's bytes in the served dtype
    bool verify = false;  // the range is the whole shard and its CRC is wanted
    bool staged = false;  // target is staging memory, to be spread over the segments
  };
  Plan plan;
  ByteSpan staging;  // this unit's own, may be empty

  void BeginPost(const MonitorLock&);
  void Post(const Link& link);

  State state(const MonitorLock&) const { return state_; }
  void Release(const MonitorLock&) { state_ = State::kFree; }
  const Status& status(const MonitorLock&) const { return status_; }
  TimePoint retry_at(const MonitorLock&) const { return retry_at_; }
  uint32_t attempts(const MonitorLock&) const { return attempts_; }
  // Once arrived.
  const ShardHeader& header() const { return header_; }

 private:
  struct Part final : transport::Request {
    ReadUnit* unit = nullptr;
    void Complete(const Status& status) override { unit->OnPart(status); }
  };
  void OnPart(const Status& status);

  Fabric* const fabric_;
  Waiter* const waiter_;
  Part payload_part_;
  Part header_part_;
  ShardHeader header_ = {};
  // Guarded by the monitor.
  State state_ = State::kFree;
  uint32_t pending_ = 0;
  uint32_t attempts_ = 0;
  Status status_;
  TimePoint retry_at_;
};

}  // namespace luwu::client
