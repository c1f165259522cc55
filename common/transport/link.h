// What shm and tcp endpoints share: the life of a link (up, failed, closed), the checks of a posted
// request, and the promise that every request completes once and that nothing runs after Close.
//
// Posting calls come from any thread and hold gate_ while they run. Everything else, Close's work
// included, happens on the progress thread. A derived class's destructor must call Close.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/event_loop.h"
#include "common/transport/region.h"
#include "common/transport/request_list.h"
#include "common/transport/transport.h"

namespace luwu::transport {

struct LinkParts {
  std::shared_ptr<EventLoop> loop;
  uint64_t session_id = 0;
  ExposedRegions exposed;
  std::vector<RegionDescriptor> expected;
};

class Link : public Endpoint, public Pollable {
 public:
  Link(Kind kind, LinkParts parts) : kind_(kind), parts_(std::move(parts)) {}

  // Endpoint
  void Close() final;
  Kind kind() const final { return kind_; }
  bool connected() const final { return state_.load(std::memory_order_acquire) == State::kUp; }

  // Any thread, events and completions included: fails the link soon, on the progress thread.
  void Disconnect(const Status& why);

  // ---- progress thread
  // ---------------------------------------------------------------------------

  // `on_teardown` runs once when the link fails or closes, before its requests complete.
  void set_on_teardown(std::function<void()> on_teardown) { on_teardown_ = std::move(on_teardown); }
  // Begins to receive.
  void Start(LinkEvents* events);
  // Completes everything outstanding with kUnavailable, then runs OnDisconnect(why).
  void Fail(const Status& why);
  // Fail, and waits for posting calls that are still at work.
  void Fence(const Status& why);

  bool OnReady(uint32_t events) final;

 protected:
  // Registers the sockets with the loop.
  virtual Status Attach() = 0;
  // Unregisters and closes the sockets; later posts fail with `result`, outstanding requests go to
  // `outstanding` with it. Called once.
  virtual void Detach(const Status& result, RequestList* outstanding) = 0;
  // Events of the link's own socket, when it registered itself.
  virtual bool OnSocket(uint32_t /*events*/) { return false; }

  EventLoop* loop() const { return parts_.loop.get(); }
  const ExposedRegions& exposed() const { return parts_.exposed; }
  const std::vector<RegionDescriptor>& expected() const { return parts_.expected; }

  // False when the link is down; the request has been completed then. Else FinishPost or LeavePost
  // must follow.
  bool EnterPost(Request* request);
  void LeavePost() { gate_.Leave(); }
  void FinishPost(Request* request, Status result) {
    CompleteInPost(request, std::move(result), &gate_);
  }
  // A range outside what the peer exposes ends the link; the error says so.
  Status CheckRemote(const RemoteSpan& remote, Access access);
  // The caller's arguments; a violation does not touch the link.
  static Status CheckSource(std::span<const ConstByteSpan> source, uint64_t bytes);

  // Progress thread.
  void DeliverNotify(uint32_t immediate);
  void DeliverCompletions(RequestList* done);

 private:
  enum class State : uint8_t { kUp, kFailed, kClosed };

  Status DownStatus() const;
  void TearDown(State to);

  const Kind kind_;
  const LinkParts parts_;
  std::atomic<State> state_{State::kUp};
  PostGate gate_;

  // Progress thread.
  LinkEvents* events_ = nullptr;
  std::function<void()> on_teardown_;
  bool torn_down_ = false;
  bool in_event_ = false;

  mutable Mutex mutex_;
  std::optional<Status> disconnect_ LUWU_GUARDED_BY(mutex_);
  Status failure_ LUWU_GUARDED_BY(mutex_);  // why state_ is kFailed
};

}  // namespace luwu::transport
