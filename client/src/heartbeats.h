// Renews a session's lease on every node, from the moment that node has opened the session until
// Stop(). Opening on the other nodes, mapping regions and loading weights may each take longer than
// a lease, so this belongs to none of them: the opener makes it, the session takes it over.
//
// One thread ("luwu-beat") that only sends and never blocks on a node. Replies come on gRPC
// threads. A node that does not answer is simply asked again; an answer that ends the session
// (fenced, deleted, failed) goes to the listener, and nothing more is sent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "client/src/session_rpc.h"
#include "common/base/status.h"

namespace luwu::client {

class Heartbeats {
 public:
  Heartbeats();
  ~Heartbeats();

  // The session is open on `node`: the first heartbeat goes out at once. `rpc` lives until Stop().
  // Any thread. The same node again (a repeated open) replaces nothing but its interval.
  void Add(uint32_t node, NodeRpc* rpc, uint32_t heartbeat_ms);
  // Asks `node` without waiting for its turn: does it still know the session?
  void Ask(uint32_t node);
  // Called at most once, also when the session had ended before. It must not call this object.
  using Listener = std::function<void(const Status& why)>;
  void Watch(Listener on_end);
  // Afterwards nothing is sent and the listener does not run. Idempotent.
  void Stop();

 private:
  struct State;  // shared with calls in flight
  static void Run(const std::shared_ptr<State>& state);
  static void OnReply(State& state, uint32_t node, const Status& status);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace luwu::client
