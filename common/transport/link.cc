#include "common/transport/link.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"

namespace luwu::transport {

Status Link::DownStatus() const {
  if (state_.load(std::memory_order_acquire) == State::kClosed) {
    return Error(ErrorCode::kCancelled, "the {} link of session {} is closed", KindName(kind_),
                 parts_.session_id);
  }
  MutexLock lock(mutex_);
  return Error(ErrorCode::kUnavailable, "the {} link of session {} is down: {}", KindName(kind_),
               parts_.session_id, MessageOf(failure_));
}

bool Link::EnterPost(Request* request) {
  const bool counted = gate_.Enter();
  if (counted && connected()) return true;
  CompleteInPost(request, DownStatus(), counted ? &gate_ : nullptr);
  return false;
}

Status Link::CheckRemote(const RemoteSpan& remote, Access access) {
  const auto found =
      std::find_if(expected().begin(), expected().end(),
                   [&](const RegionDescriptor& region) { return region.id == remote.region(); });
  Status status;
  if (found == expected().end()) {
    status = Error(ErrorCode::kInvalidArgument, "the peer exposes no region {}", remote.region());
  } else if (found->access != access) {
    status = Error(ErrorCode::kInvalidArgument, "region {} of the peer may not be {}",
                   remote.region(), access == Access::kRemoteRead ? "read" : "written");
  } else if (!RangeFits(remote.offset(), remote.bytes(), found->bytes)) {
    status = Error(ErrorCode::kInvalidArgument,
                   "bytes [{}, +{}) lie outside region {} of the peer, which has {} bytes",
                   remote.offset(), remote.bytes(), remote.region(), found->bytes);
  }
  if (!status.ok()) Disconnect(status);
  return status;
}

Status Link::CheckSource(std::span<const ConstByteSpan> source, uint64_t bytes) {
  if (source.size() > kGatherMax) {
    return Error(ErrorCode::kInvalidArgument, "a write gathers {} ranges, at most {} are allowed",
                 source.size(), kGatherMax);
  }
  uint64_t total = 0;
  for (const ConstByteSpan& range : source) {
    const auto sum = CheckedAdd(total, range.size());
    if (!sum) return Error(ErrorCode::kInvalidArgument, "the source ranges overflow");
    total = *sum;
  }
  if (total != bytes) {
    return Error(ErrorCode::kInvalidArgument, "the source ranges have {} bytes, the target has {}",
                 total, bytes);
  }
  return OkStatus();
}

void Link::DeliverNotify(uint32_t immediate) {
  in_event_ = true;
  events_->OnNotify(immediate);
  in_event_ = false;
}

void Link::DeliverCompletions(RequestList* done) {
  in_event_ = true;
  done->CompleteAll();
  in_event_ = false;
}

void Link::Start(LinkEvents* events) {
  events_ = events;
  const Status status = Attach();
  if (!status.ok()) Fail(status);
}

void Link::TearDown(State to) {
  torn_down_ = true;
  state_.store(to, std::memory_order_release);
  if (on_teardown_) on_teardown_();
  loop()->Remove(-1, this);
  RequestList outstanding;
  Detach(DownStatus(), &outstanding);
  DeliverCompletions(&outstanding);
}

void Link::Fail(const Status& why) {
  if (torn_down_) return;
  LogWarning("link_down", "session={} kind={} why=\"{}\"", parts_.session_id, KindName(kind_),
             ToString(why));
  {
    MutexLock lock(mutex_);
    failure_ = why;
  }
  TearDown(State::kFailed);
  if (events_ == nullptr) return;
  in_event_ = true;
  events_->OnDisconnect(why);
  in_event_ = false;
}

void Link::Fence(const Status& why) {
  Fail(why);
  gate_.WaitEmpty();
}

void Link::Disconnect(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!disconnect_) disconnect_ = why;
  }
  loop()->Kick(this);
}

bool Link::OnReady(uint32_t events) {
  std::optional<Status> why;
  {
    MutexLock lock(mutex_);
    why.swap(disconnect_);
  }
  if (why) {
    Fail(*why);
    return false;
  }
  return OnSocket(events);
}

void Link::Close() {
  loop()->RunSync([this] {
    LUWU_CHECK(!in_event_, "a link must not be closed from within its own event or completion");
    if (!torn_down_) TearDown(State::kClosed);
    state_.store(State::kClosed, std::memory_order_release);
  });
  gate_.ShutAndWait();
}

}  // namespace luwu::transport
