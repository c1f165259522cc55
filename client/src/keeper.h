// Keeps a session's data plane alive: redials data links that failed, and lets go of links that
// nobody uses any more. One thread ("luwu-keep") per session.
//
// A link that cannot be had again within the session's patience makes its node lost; that verdict
// is the NodeLink's own, so that nobody depends on this thread to hear it.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/heartbeats.h"
#include "client/src/push_engine.h"

namespace luwu::client {

class Keeper {
 public:
  // All pointers outlive the keeper.
  Keeper(Fabric* fabric, PushEngine* push, Heartbeats* heartbeats);
  ~Keeper();

  // Ends the thread; a dial in progress ends within a second.
  void Stop();

 private:
  // Guarded by the monitor.
  struct PeerState {
    uint32_t node = 0;
    TimePoint dial_due;
    uint64_t backoff_ms = 0;
  };
  enum class Task { kStop, kSweep, kDial };

  void Run();
  Task NextTask(const MonitorLock& lock, size_t* index);
  void Dial(size_t index);
  void DropDeadViews();

  Fabric* const fabric_;
  PushEngine* const push_;
  Heartbeats* const heartbeats_;
  Waiter waiter_;
  std::vector<PeerState> peers_;
  TimePoint sweep_due_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace luwu::client
