#include "server/service/long_run.h"

#include <optional>
#include <utility>

namespace luwu {
namespace {

constexpr uint64_t kSliceMs = 100;

class LongRun : public std::enable_shared_from_this<LongRun> {
 public:
  LongRun(const ServiceContext& services, std::shared_ptr<DeferredReply> reply, RunRequest request,
          std::shared_ptr<RunProgress> progress)
      : services_(services),
        reply_(std::move(reply)),
        request_(std::move(request)),
        progress_(std::move(progress)) {}
  ~LongRun() { request_.table->Leave(request_.number); }

  void Post() {
    PostOrRefuse(services_.control_queue, reply_, services_,
                 [self = shared_from_this()] { self->Slice(); });
  }

 private:
  void Slice() {
    const StatusOr<bool> done = Work();
    if (!done.ok()) {
      reply_->Finish(done.status());
    } else if (*done) {
      reply_->Finish(OkStatus(), [this] { request_.work->Answer(); });
    } else if (!reply_->finished()) {
      Post();
    }
  }

  StatusOr<bool> Work() {
    if (reply_->finished()) return false;  // the caller is gone
    RETURN_IF_ERROR(services_.responder.admission->Check());
    if (!std::exchange(opened_, true)) RETURN_IF_ERROR(request_.work->Open(progress_.get()));
    const TimePoint end = DeadlineAfter(kSliceMs);
    bool done = false;
    while (!done && MillisecondsUntil(end) > 0 && !reply_->finished()) {
      StatusOr<bool> step = request_.work->Step(progress_.get());
      if (!step.ok() && MayWait(step.status())) return false;
      RETURN_IF_ERROR(step.status());
      busy_until_.reset();
      done = *step;
    }
    return done;
  }

  bool MayWait(const Status& status) {
    if (CodeOf(status) != ErrorCode::kDeadline) return false;
    if (!busy_until_) busy_until_ = DeadlineAfter(LongWork::kBusyMs);
    return MillisecondsUntil(*busy_until_) > 0;
  }

  const ServiceContext services_;
  const std::shared_ptr<DeferredReply> reply_;
  RunRequest request_;
  const std::shared_ptr<RunProgress> progress_;
  bool opened_ = false;
  std::optional<TimePoint> busy_until_;
};

}  // namespace

StatusOr<std::shared_ptr<RunProgress>> RunTable::Enter(uint64_t number) {
  MutexLock lock(mutex_);
  if (runs_.size() >= kRunsMax) {
    return Error(ErrorCode::kUnavailable,
                 "{} imports and exports are in progress, and no more are possible; wait for one",
                 runs_.size());
  }
  const auto [at, is_new] = runs_.emplace(number, nullptr);
  if (!is_new) {
    return Error(ErrorCode::kAlreadyExists, "operation {:016x} is in progress already", number);
  }
  at->second = std::make_shared<RunProgress>();
  return at->second;
}

void RunTable::Leave(uint64_t number) {
  MutexLock lock(mutex_);
  runs_.erase(number);
}

StatusOr<std::shared_ptr<RunProgress>> RunTable::Find(uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = runs_.find(number);
  if (found != runs_.end()) return found->second;
  return Error(ErrorCode::kNotFound, "operation {:016x} is not in progress", number);
}

void StartRun(const ServiceContext& services, std::shared_ptr<DeferredReply> reply,
              RunRequest request) {
  StatusOr<std::shared_ptr<RunProgress>> progress = request.table->Enter(request.number);
  if (!progress.ok()) {
    reply->Finish(progress.status());
    return;
  }
  std::make_shared<LongRun>(services, std::move(reply), std::move(request), *progress)->Post();
}

}  // namespace luwu
