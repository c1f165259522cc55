#include "common/transport/request_list.h"

#include <utility>

namespace luwu::transport {
namespace {

// The list of the outermost posting call of this thread that is completing a request.
thread_local RequestList* outermost = nullptr;

}  // namespace

bool PostGate::Enter() {
  if ((state_.fetch_add(1, std::memory_order_acq_rel) & kShut) == 0) return true;
  Leave();
  return false;
}

void PostGate::Leave() {
  uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & (kShut | kWaiting)) == 0) {
    if (state_.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel)) return;
  }
  // Somebody may wait, and may destroy the gate once the count is zero: count under the lock.
  MutexLock lock(mutex_);
  const uint32_t left = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if ((left & kCount) != 0) return;
  ++times_empty_;
  emptied_.NotifyAll();
}

void PostGate::WaitEmptyOnce() {
  // That it was empty once is enough: others may be inside again by the time that we look.
  const uint64_t before = times_empty_;
  while ((state_.load(std::memory_order_acquire) & kCount) != 0 && times_empty_ == before) {
    emptied_.Wait(mutex_);
  }
}

void PostGate::ShutAndWait() {
  MutexLock lock(mutex_);
  state_.fetch_or(kShut, std::memory_order_acq_rel);
  WaitEmptyOnce();
}

void PostGate::WaitEmpty() {
  MutexLock lock(mutex_);
  state_.fetch_or(kWaiting, std::memory_order_acq_rel);
  WaitEmptyOnce();
  state_.fetch_and(~kWaiting, std::memory_order_acq_rel);
}

void RequestList::Push(Request* request, Status result, PostGate* gate) {
  request->next_ = nullptr;
  request->result_ = std::move(result);
  request->gate_ = gate;
  (head_ == nullptr ? head_ : tail_->next_) = request;
  tail_ = request;
}

void RequestList::CompleteAll() {
  while (head_ != nullptr) {
    Request* request = std::exchange(head_, head_->next_);
    const Status result = std::move(request->result_);
    PostGate* gate = request->gate_;
    request->Complete(result);
    if (gate != nullptr) gate->Leave();
  }
}

void CompleteInPost(Request* request, Status result, PostGate* gate) {
  if (outermost != nullptr) {
    outermost->Push(request, std::move(result), gate);
    return;
  }
  RequestList nested;
  outermost = &nested;
  request->Complete(result);
  if (gate != nullptr) gate->Leave();
  nested.CompleteAll();
  outermost = nullptr;
}

}  // namespace luwu::transport
