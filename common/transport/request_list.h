// How requests are completed. RequestList is an intrusive queue of requests with their results:
// collected under a lock, completed after it. PostGate counts the threads inside an endpoint's
// posting calls, so that Close can promise that no completion runs after it.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/sync.h"
#include "common/transport/transport.h"

namespace luwu::transport {

class PostGate {
 public:
  // False once the gate is shut; then Leave must not be called.
  bool Enter();
  void Leave();
  // Returns when everybody who had entered has left. Not from inside.
  void ShutAndWait();
  // Returns when everybody who is inside now has left; the gate stays as it is.
  void WaitEmpty();

 private:
  static constexpr uint32_t kShut = 1U << 31;
  static constexpr uint32_t kWaiting = 1U << 30;
  static constexpr uint32_t kCount = kWaiting - 1;

  void WaitEmptyOnce() LUWU_REQUIRES(mutex_);

  std::atomic<uint32_t> state_{0};
  Mutex mutex_;
  CondVar emptied_;
  uint64_t times_empty_ LUWU_GUARDED_BY(mutex_) = 0;  // seen by Leave while somebody may wait
};

// Not thread-safe.
class RequestList {
 public:
  // When `gate` is not null it is left after the request's Complete.
  void Push(Request* request, Status result, PostGate* gate = nullptr);
  bool empty() const { return head_ == nullptr; }
  // Completes in order; requests that are pushed meanwhile are included. A request may be
  // destroyed or posted again by its own Complete.
  void CompleteAll();

 private:
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
};

// Completes a request inside its posting call and leaves `gate` (may be null). A request that was
// posted from within such a completion is completed by the outermost call instead, so that a chain
// of requests does not grow the stack.
void CompleteInPost(Request* request, Status result, PostGate* gate);

}  // namespace luwu::transport
