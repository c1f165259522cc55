#include "common/transport/fault/fault_endpoint.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/link.h"
#include "common/transport/request_list.h"

namespace luwu::transport {
namespace {

enum class Verb { kWrite, kWriteWithNotify, kRead, kNotify };

// What happens to one request; a function of the seed and the request's number only.
struct Fate {
  uint32_t delay_ms = 0;
  bool duplicate = false;
  bool drop = false;
  bool lose = false;
};

// SplitMix64.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

Fate FateOf(const FaultPlan& plan, uint64_t number) {
  uint64_t state = Mix(plan.seed) ^ number;
  const auto draw = [&state](uint64_t below) { return (state = Mix(state)) % below; };
  Fate fate;
  const bool delay = draw(1000) < plan.delay_permille;
  const auto delay_ms = static_cast<uint32_t>(1 + draw(std::max(plan.delay_ms_max, 1U)));
  if (delay) fate.delay_ms = delay_ms;
  fate.duplicate = draw(1000) < plan.duplicate_permille;
  fate.drop = draw(1000) < plan.drop_permille;
  fate.lose = draw(1000) < plan.lose_completion_permille;
  return fate;
}

struct Operation {
  Verb verb = Verb::kWrite;
  std::vector<ConstByteSpan> source;
  ByteSpan target;
  RemoteSpan remote;
  uint32_t lane = 0;
  uint32_t immediate = 0;
  Request* request = nullptr;
  Fate fate;
  TimePoint due;
};

// Stands in for the poster's request while it is executed once or twice.
class Execution {
 public:
  explicit Execution(const Operation& operation)
      : request_(operation.request),
        lose_(operation.fate.lose),
        left_(operation.fate.duplicate ? 2 : 1) {}

  static void Run(Endpoint* inner, const Operation& operation) {
    const auto execution = std::make_shared<Execution>(operation);
    execution->self_ = execution;  // until the last completion
    Post(inner, operation, &execution->first_);
    if (operation.fate.duplicate) Post(inner, operation, &execution->second_);
  }

 private:
  class Shot final : public Request {
   public:
    explicit Shot(Execution* execution) : execution_(execution) {}
    void Complete(const Status& status) override { execution_->OnShot(status); }

   private:
    Execution* execution_;
  };

  static void Post(Endpoint* inner, const Operation& operation, Request* request) {
    switch (operation.verb) {
      case Verb::kWrite:
        return inner->Write(operation.source, operation.remote, operation.lane, request);
      case Verb::kWriteWithNotify:
        return inner->WriteWithNotify(operation.source, operation.remote, operation.lane,
                                      operation.immediate, request);
      case Verb::kRead:
        return inner->Read(operation.remote, operation.target, operation.lane, request);
      case Verb::kNotify:
        return inner->Notify(operation.lane, operation.immediate, request);
    }
  }

  void OnShot(const Status& status) {
    Status result;
    {
      MutexLock lock(mutex_);
      if (result_.ok()) result_ = status;
      if (--left_ > 0) return;
      result = result_;
    }
    const std::shared_ptr<Execution> self = std::move(self_);
    if (result.ok() && lose_) {
      result = Error(ErrorCode::kUnavailable, "fault plan: the completion was lost");
    }
    request_->Complete(result);
  }

  Request* const request_;
  const bool lose_;
  std::shared_ptr<Execution> self_;
  Shot first_{this};
  Shot second_{this};
  Mutex mutex_;
  Status result_ LUWU_GUARDED_BY(mutex_);
  int left_ LUWU_GUARDED_BY(mutex_);
};

class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(std::unique_ptr<Endpoint> inner, const FaultPlan& plan)
      : inner_(std::move(inner)), plan_(plan) {
    if (plan_.delay_permille == 0 && plan_.disconnect_after_requests == 0) return;
    timer_ = std::thread([this] { RunTimer(); });
    ::pthread_setname_np(timer_.native_handle(), "luwu-fault");
  }
  ~FaultEndpoint() override { FaultEndpoint::Close(); }

  void Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
             Request* request) override {
    Post({.verb = Verb::kWrite,
          .source = {source.begin(), source.end()},
          .target = {},
          .remote = target,
          .lane = lane,
          .request = request,
          .fate = {},
          .due = {}});
  }
  void WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                       uint32_t immediate, Request* request) override {
    Post({.verb = Verb::kWriteWithNotify,
          .source = {source.begin(), source.end()},
          .target = {},
          .remote = target,
          .lane = lane,
          .immediate = immediate,
          .request = request,
          .fate = {},
          .due = {}});
  }
  void Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) override {
    Post({.verb = Verb::kRead,
          .source = {},
          .target = target,
          .remote = source,
          .lane = lane,
          .request = request,
          .fate = {},
          .due = {}});
  }
  void Notify(uint32_t lane, uint32_t immediate, Request* request) override {
    Post({.verb = Verb::kNotify,
          .source = {},
          .target = {},
          .remote = {},
          .lane = lane,
          .immediate = immediate,
          .request = request,
          .fate = {},
          .due = {}});
  }
  std::optional<ByteSpan> MapWritable(RegionId region) override {
    return inner_->MapWritable(region);
  }
  std::optional<ConstByteSpan> MapReadable(RegionId region) override {
    return inner_->MapReadable(region);
  }
  void Close() override;
  Kind kind() const override { return inner_->kind(); }
  uint64_t served_bytes() const override { return inner_->served_bytes(); }
  bool connected() const override {
    return !cut_.load(std::memory_order_acquire) && inner_->connected();
  }

 private:
  void Post(Operation operation);
  void Execute(const Operation& operation, PostGate* gate);
  void RunTimer();
  bool TakeDue(Operation* operation, TimePoint* next) LUWU_REQUIRES(mutex_);
  void FinishLaneHead(uint32_t lane);
  void Cut();

  const std::unique_ptr<Endpoint> inner_;
  const FaultPlan plan_;
  PostGate gate_;
  std::atomic<bool> cut_{false};
  std::thread timer_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t posted_ LUWU_GUARDED_BY(mutex_) = 0;
  bool closed_ LUWU_GUARDED_BY(mutex_) = false;
  bool cut_wanted_ LUWU_GUARDED_BY(mutex_) = false;
  // Delayed requests and whatever was posted behind them. The head stays until it has been posted,
  // so that nothing of its lane overtakes it.
  std::map<uint32_t, std::deque<Operation>> lanes_ LUWU_GUARDED_BY(mutex_);
};

void FaultEndpoint::Post(Operation operation) {
  Request* request = operation.request;
  if (!gate_.Enter()) {
    CompleteInPost(request, Error(ErrorCode::kCancelled, "the link is closed"), nullptr);
    return;
  }
  mutex_.Lock();
  const uint64_t number = ++posted_;
  const uint64_t last = plan_.disconnect_after_requests;
  const bool refused = last != 0 && number > last;
  const bool closed = closed_;
  if (last != 0 && number == last) cut_wanted_ = true;
  operation.fate = FateOf(plan_, number);
  const auto lane = lanes_.find(operation.lane);
  const bool queue = !refused && !closed && (operation.fate.delay_ms > 0 || lane != lanes_.end());
  if (queue) {
    operation.due = DeadlineAfter(operation.fate.delay_ms);
    lanes_[operation.lane].push_back(std::move(operation));
  }
  changed_.NotifyAll();
  mutex_.Unlock();
  if (queue) {
    gate_.Leave();
  } else if (closed) {
    CompleteInPost(request, Error(ErrorCode::kCancelled, "the link is closed"), &gate_);
  } else if (refused) {
    CompleteInPost(request, Error(ErrorCode::kUnavailable, "fault plan: the link was cut"), &gate_);
  } else {
    Execute(operation, &gate_);
  }
}

// `gate` is null on the timer thread, which Close waits for.
void FaultEndpoint::Execute(const Operation& operation, PostGate* gate) {
  if (operation.fate.drop) {
    CompleteInPost(operation.request,
                   Error(ErrorCode::kUnavailable, "fault plan: the request was dropped"), gate);
    return;
  }
  Execution::Run(inner_.get(), operation);
  if (gate != nullptr) gate->Leave();
}

// The earliest head that is due; else *next is when one will be.
bool FaultEndpoint::TakeDue(Operation* operation, TimePoint* next) {
  *next = DeadlineAfter(60'000);
  const std::deque<Operation>* best = nullptr;
  for (const auto& [lane, queue] : lanes_) {
    if (best == nullptr || queue.front().due < best->front().due) best = &queue;
  }
  if (best == nullptr) return false;
  *next = best->front().due;
  if (*next > std::chrono::steady_clock::now()) return false;
  *operation = best->front();
  return true;
}

void FaultEndpoint::FinishLaneHead(uint32_t lane) {
  MutexLock lock(mutex_);
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  found->second.pop_front();
  if (found->second.empty()) lanes_.erase(found);
}

void FaultEndpoint::Cut() {
  cut_.store(true, std::memory_order_release);
  if (auto* link = dynamic_cast<Link*>(inner_.get())) {
    link->Disconnect(Error(ErrorCode::kUnavailable, "fault plan: the link was cut"));
  } else {
    inner_->Close();
  }
}

void FaultEndpoint::RunTimer() {
  mutex_.Lock();
  while (!closed_) {
    Operation operation;
    TimePoint next;
    const bool due = TakeDue(&operation, &next);
    const bool cut = !due && std::exchange(cut_wanted_, false);
    if (!due && !cut) {
      changed_.WaitUntil(mutex_, next);
      continue;
    }
    mutex_.Unlock();
    if (cut) {
      Cut();
    } else {
      Execute(operation, nullptr);
      FinishLaneHead(operation.lane);
    }
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void FaultEndpoint::Close() {
  std::map<uint32_t, std::deque<Operation>> lanes;
  mutex_.Lock();
  closed_ = true;
  changed_.NotifyAll();
  mutex_.Unlock();
  if (timer_.joinable()) timer_.join();
  {
    MutexLock lock(mutex_);
    lanes.swap(lanes_);
  }
  for (const auto& [lane, queue] : lanes) {
    for (const Operation& operation : queue) {
      operation.request->Complete(
          Error(ErrorCode::kCancelled, "the link was closed before the delayed request ran"));
    }
  }
  inner_->Close();
  gate_.ShutAndWait();
}

}  // namespace

std::unique_ptr<Endpoint> WrapWithFaults(std::unique_ptr<Endpoint> inner, const FaultPlan& plan) {
  return std::make_unique<FaultEndpoint>(std::move(inner), plan);
}

}  // namespace luwu::transport
