// Keeps a session alive: renews its lease on every node, redials data links that failed, and lets
// go of links that nobody uses any more. One thread ("luwu-keep") per session.
//
// A link that cannot be had again within the session's patience makes its node lost; that verdict
// is the NodeLink's own, so that nobody depends on this thread to hear it.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/push_engine.h"
#include "client/src/session_rpc.h"

namespace luwu::client {

class Keeper {
 public:
  struct Peer {
    uint32_t node = 0;
    NodeRpc* rpc = nullptr;
    uint32_t heartbeat_ms = 0;
  };
  // All pointers outlive the keeper; the RPCs' callbacks end before it does (NodeRpc::~NodeRpc).
  Keeper(Fabric* fabric, PushEngine* push, const std::vector<Peer>& peers);
  ~Keeper();

  // Ends the thread; a dial in progress ends within a second.
  void Stop();

 private:
  // Guarded by the monitor.
  struct PeerState {
    Peer peer;
    TimePoint heartbeat_due;
    bool heartbeat_in_flight = false;
    TimePoint dial_due;
    uint64_t backoff_ms = 0;
  };
  enum class Task { kStop, kHeartbeat, kDial };

  void Run();
  Task NextTask(const MonitorLock& lock, size_t* index);
  void Heartbeat(size_t index);
  void OnHeartbeat(size_t index, const Status& status);
  void Dial(size_t index);
  void DropDeadViews(uint32_t node);

  Fabric* const fabric_;
  PushEngine* const push_;
  Waiter waiter_;
  std::vector<PeerState> peers_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace luwu::client
