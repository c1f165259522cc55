// The one-sided data plane between a client and one daemon. Both ends hold an Endpoint of one
// authenticated connection ("link"); each end exposes regions under ids and reads, writes, or
// writes-and-notifies into the regions that its peer exposed. The peer's application code takes no
// part in a read or write; it hears only notifications.
//
// Contract of every transport:
//  - Requests of one endpoint with the same `lane` take effect in posting order; requests of
//    different lanes may be reordered and run in parallel. Reads have no order against writes.
//    (verbs: a read of over 4 KiB may overtake the reads before it; smaller ones do not.)
//  - A WriteWithNotify's bytes are in place before the peer's OnNotify runs.
//  - `Request::Complete` is called exactly once per posted request, on the endpoint's progress
//    thread or inside the posting call; it must not block and may post further requests. OK means
//    that the peer's memory holds the bytes (write) or that the destination does (read). After an
//    error the bytes may or may not have arrived, and the request never takes effect later than
//    its completion.
//  - A failed link stays failed: every outstanding request completes with kUnavailable, later ones
//    fail at once, OnDisconnect runs once. The owner makes a new link; the daemon drops all
//    requests of a session's old links before it accepts a new one.
//  - Source and destination memory must stay valid until completion.
//  - Bounds and access rights are checked by the side that owns the memory (shm: enforced by the
//    mapping's protection; bounds by the initiator against the mapped size; verbs: by its NIC). A
//    violation ends the link.
//
// No allocation happens per request after warm-up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace luwu::transport {

enum class Kind : uint8_t { kShm = 1, kTcp = 2, kVerbs = 3 };
std::string_view KindName(Kind kind);  // "shm", "tcp", "verbs"

using RegionId = uint32_t;

enum class Access : uint8_t { kRemoteRead = 1, kRemoteWrite = 2 };

// A range of a region that the peer exposed. A value: sub-ranges are checked, offsets are never
// computed at call sites.
class RemoteSpan {
 public:
  RemoteSpan() = default;
  RemoteSpan(RegionId region, uint64_t offset, uint64_t bytes)
      : region_(region), offset_(offset), bytes_(bytes) {}

  RegionId region() const { return region_; }
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }
  // kInvalidArgument when the sub-range does not fit.
  StatusOr<RemoteSpan> Sub(uint64_t offset, uint64_t bytes) const {
    if (!RangeFits(offset, bytes, bytes_)) {
      return Error(ErrorCode::kInvalidArgument,
                   "bytes [{}, +{}) lie outside a remote range of {} bytes", offset, bytes, bytes_);
    }
    return RemoteSpan(region_, offset_ + offset, bytes);
  }

 private:
  RegionId region_ = 0;
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
};

// Base of what the poster hands in: embed it in your own operation object.
class PostGate;
class Request {
 public:
  virtual ~Request() = default;
  virtual void Complete(const Status& status) = 0;

 private:
  friend class RequestList;
  Request* next_ = nullptr;   // for the transport's queues
  Status result_;             // while it waits there for its Complete
  PostGate* gate_ = nullptr;  // left after Complete, when not null
};

// Both run on the endpoint's progress thread and must not block.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void OnNotify(uint32_t immediate) = 0;
  // The link is gone; no call follows. `why` says what happened to the peer.
  virtual void OnDisconnect(const Status& why) = 0;
};

inline constexpr size_t kGatherMax = 64;

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Thread-safe. `source` ranges are written back to back; their sum must equal `target.bytes()`.
  // The span itself need only live during the call (at most kGatherMax ranges).
  virtual void Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                     Request* request) = 0;
  virtual void WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target,
                               uint32_t lane, uint32_t immediate, Request* request) = 0;
  virtual void Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) = 0;

  // The peer's region as local memory, where the transport can (shm); else nothing. Writable
  // regions only for Access::kRemoteWrite. Valid until the endpoint is destroyed.
  virtual std::optional<ByteSpan> MapWritable(RegionId region) = 0;
  virtual std::optional<ConstByteSpan> MapReadable(RegionId region) = 0;
  // After storing through MapWritable: makes the stores visible, then notifies like a
  // zero-byte WriteWithNotify. Works on every transport.
  virtual void Notify(uint32_t lane, uint32_t immediate, Request* request) = 0;

  // Ends the link: outstanding requests complete with kCancelled before this returns, and no
  // event or completion runs after it. Idempotent. Not from within an event or completion.
  virtual void Close() = 0;

  virtual Kind kind() const = 0;
  virtual bool connected() const = 0;
  // Bytes of exposed regions that this process has sent to the peer for its reads. Stays 0 over shm
  // and verbs, whose readers nobody sees. Any thread.
  virtual uint64_t served_bytes() const { return 0; }
};

}  // namespace luwu::transport
