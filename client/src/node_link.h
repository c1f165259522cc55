// The data plane towards one daemon: the board it writes, the slots this worker may fill, and the
// present connection ("link"), which the keeper replaces when it fails.
//
// States: up (a link is there), down (it failed; the keeper redials; operations wait), lost (down
// for longer than the session's patience: every operation that needs the node ends with kNodeLost).
// All state is guarded by the session's monitor; links are shared pointers, so that an operation
// that copies from mapped memory keeps the mapping while a relink replaces it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/board_view.h"
#include "client/src/monitor.h"
#include "client/src/slot_ledger.h"
#include "client/src/want_ledger.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/tensor/placement.h"
#include "common/transport/connect.h"
#include "common/transport/fault/fault_endpoint.h"

namespace luwu::client {

class NodeLink;

// One connection. Closes its endpoint when the last user lets go, never on the progress thread.
class Link final : public transport::LinkEvents {
 public:
  explicit Link(NodeLink* owner) : owner_(owner) {}
  ~Link() override;

  // Takes the endpoint that was dialled with this object as its events.
  Status Adopt(std::unique_ptr<transport::Endpoint> endpoint);

  transport::Endpoint& endpoint() const { return *endpoint_; }
  // Afterwards no request is outstanding and no event runs. From any number of threads.
  void Close() LUWU_EXCLUDES(close_mutex_);
  // The daemon's memory, mapped; empty over tcp.
  ConstByteSpan weights() const { return weights_; }
  ByteSpan inbox() const { return inbox_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  void OnNotify(uint32_t immediate) override;
  void OnDisconnect(const Status& why) override;

 private:
  friend class NodeLink;
  NodeLink* const owner_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  ConstByteSpan weights_;
  ByteSpan inbox_;
  std::atomic<bool> failed_{false};
  Mutex close_mutex_;
  uint64_t view_version_ = 0;  // newest version a view was given of, plus one (monitor)
};

// Where and how to reach the node; fixed at open.
struct NodeLinkOptions {
  Node node;
  transport::DialOptions dial;  // all but the deadline
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t shards = 0;
  WantLedger wants;
  uint32_t patience_ms = 0;  // how long a link may be down
  transport::FaultPlan faults;
};

class NodeLink {
 public:
  // `dialler` and `monitor` outlive this object; `board` is what dial.exposed exposes.
  NodeLink(NodeLinkOptions options, std::shared_ptr<transport::LocalRegion> board,
           transport::Dialler* dialler, Monitor* monitor);

  const Node& node() const { return options_.node; }
  std::string Name() const;  // "node n1 (127.0.0.1:7001)"
  transport::Kind kind() const { return options_.dial.kind; }
  bool is_shm() const { return options_.dial.kind == transport::Kind::kShm; }
  const BoardView& board() const { return board_; }
  SlotLedger& ledger(const MonitorLock&) { return ledger_; }
  WantLedger& wants(const MonitorLock&) { return wants_; }
  uint64_t slot_bytes() const { return options_.slot_bytes; }

  // Memory to fill `slot` in: the mapped inbox, or over tcp this process's mirror of it.
  ByteSpan SlotMemory(const Link& link, uint32_t slot) const;
  Status PrepareMirror();  // tcp: allocates and touches it

  // Dials once and makes the result the present link. Blocks until `deadline` at most.
  Status Connect(TimePoint deadline);

  // The present link, or null while there is none.
  std::shared_ptr<Link> link(const MonitorLock&) const { return link_; }
  // Lasting failure: the node is lost, or the daemon put a fault on the board. OK while up, and
  // while down with patience left.
  Status Verdict(const MonitorLock&, TimePoint now);
  // When Verdict will turn to kNodeLost by itself; nothing while up.
  std::optional<TimePoint> lost_at(const MonitorLock&) const;
  bool is_down(const MonitorLock&) const { return link_ == nullptr; }
  // kDeadline with the reason the link went down: what a call hears whose time is over while the
  // node may still come back. Only while down.
  Status StillDown(const MonitorLock&, TimePoint now) const;

  // Ends `link`: all its outstanding requests complete with kCancelled before this returns. Down if
  // it was the present link. Not with the monitor held.
  void Abort(const std::shared_ptr<Link>& link, const Status& why);
  // Session close: no further link.
  void Shutdown();

  // Keeps mapped memory of the present link for a view of `version`, also across relinks.
  void PinView(const MonitorLock&, uint64_t version);
  bool has_retired(const MonitorLock&) const { return !retired_.empty(); }
  // Lets go of replaced links whose views have ended. Returns them, to be destroyed unlocked.
  std::vector<std::shared_ptr<Link>> DropDeadViews(const MonitorLock&, uint64_t current_step);

 private:
  friend class Link;
  void OnBoard();
  void OnLinkFailed(Link* link, const Status& why);
  Status Lost(const MonitorLock&, TimePoint now) const;
  std::shared_ptr<Link> GoDown(const MonitorLock&, const Status& why);

  const NodeLinkOptions options_;
  const std::shared_ptr<transport::LocalRegion> board_region_;
  transport::Dialler* const dialler_;
  Monitor* const monitor_;
  const BoardView board_;
  Mapping mirror_;
  std::shared_ptr<const void> mirror_pin_;  // verbs; goes before the memory

  // Guarded by the monitor.
  SlotLedger ledger_;
  WantLedger wants_;
  std::shared_ptr<Link> link_;
  std::vector<std::shared_ptr<Link>> retired_;
  TimePoint down_since_;
  Status down_why_;
  Status lost_;
  bool shut_down_ = false;

  std::atomic<uint64_t> links_made_{0};
};

}  // namespace luwu::client
