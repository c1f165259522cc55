// What one daemon asks of the others apart from step reports: to prepare and to roll back, to make
// points and keep them. Answers come on gRPC's threads. AskAll asks many at once and waits, which
// is how the threads "luwu-recover" and "luwu-points" use it.
//
// Owned by the daemon. Thread-safe. Shutdown ends what is outstanding; every call has a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/tls.h"
#include "common/tensor/placement.h"
#include "server/cluster/recovery_round.h"
#include "server/service/caller.h"
#include "server/service/job_registry.h"

namespace luwu {

class PeerClient {
 public:
  using Done = std::function<void(Status)>;
  using PointsDone = std::function<void(StatusOr<StoredPoints>)>;

  virtual ~PeerClient() = default;

  // `node` by index in the node list, another than this one. Errors name it. Calls that are given a
  // deadline wait until then for an answer, or 10 s when that is less.
  virtual void PrepareRollback(uint32_t node, const JobKey& job, uint64_t round,
                               PointsDone done) = 0;
  virtual void RollBack(uint32_t node, const std::string& job, uint64_t round,
                        const persist::Point& target, Done done) = 0;
  struct PointRequest {
    std::string job;
    uint64_t epoch = 0;
    uint64_t step = 0;
  };
  virtual void MakePoint(uint32_t node, const PointRequest& point, TimePoint deadline,
                         Done done) = 0;
  virtual void KeepCheckpoint(uint32_t node, const CheckpointRequest& checkpoint,
                              TimePoint deadline, Done done) = 0;
  struct CheckpointName {
    std::string job;
    std::string name;
  };
  virtual void DropCheckpoint(uint32_t node, const CheckpointName& checkpoint, TimePoint deadline,
                              Done done) = 0;
  virtual void ListStored(uint32_t node, const std::string& job, TimePoint deadline,
                          PointsDone done) = 0;
  // As ListStored, once the node has read all of the checkpoint: until the deadline.
  virtual void VerifyStored(uint32_t node, const CheckpointName& checkpoint, TimePoint deadline,
                            PointsDone done) = 0;
  // To the lead: a job that is on disk only wants to be rolled back.
  struct RecoveryRequest {
    std::string job;
    uint64_t epoch = 0;
    bool just_started = false;
  };
  virtual void AskRecovery(uint32_t lead, const RecoveryRequest& request, Done done) = 0;

  // Later calls end at once with kCancelled, those outstanding soon.
  virtual void Shutdown() = 0;
};

std::unique_ptr<PeerClient> MakePeerClient(std::vector<Node> nodes, uint32_t self,
                                           uint64_t nodes_fingerprint,
                                           const rpc::Credentials& credentials = nullptr);

// Runs `start(i, done)` for i below `count` and waits until each has called its `done`. When
// `caller` goes, what has not answered yet counts as kCancelled.
template <typename Result, typename Start>
std::vector<Result> AskAll(size_t count, const Start& start, const Caller* caller = nullptr) {
  struct Gathering {
    Mutex mutex;
    CondVar changed;
    size_t missing LUWU_GUARDED_BY(mutex) = 0;
    std::vector<std::optional<Result>> results LUWU_GUARDED_BY(mutex);
  };
  const auto gathering = std::make_shared<Gathering>();
  {
    MutexLock lock(gathering->mutex);
    gathering->missing = count;
    gathering->results.resize(count);
  }
  for (size_t i = 0; i < count; ++i) {
    start(i, [gathering, i](Result result) {
      MutexLock lock(gathering->mutex);
      gathering->results[i] = std::move(result);
      if (--gathering->missing == 0) gathering->changed.NotifyAll();
    });
  }
  std::vector<Result> results;
  MutexLock lock(gathering->mutex);
  while (gathering->missing > 0 && (caller == nullptr || !caller->gone())) {
    if (caller == nullptr) {
      gathering->changed.Wait(gathering->mutex);
    } else {
      gathering->changed.WaitUntil(gathering->mutex, DeadlineAfter(Caller::kLookMs));
    }
  }
  for (const std::optional<Result>& result : gathering->results) {
    results.push_back(result ? *result
                             : Result(Error(ErrorCode::kCancelled, "the caller gave up")));
  }
  return results;
}

inline const Status& StatusIn(const Status& answer) { return answer; }
template <typename T>
Status StatusIn(const StatusOr<T>& answer) {
  return answer.status();
}

// OK when all answers are; else the first error's code with the text of all, so that every node
// that failed is named.
template <typename Answer>
Status AllErrors(const std::vector<Answer>& answers) {
  Status all = OkStatus();
  for (const Answer& answer : answers) {
    const Status status = StatusIn(answer);
    if (status.ok()) continue;
    all = all.ok() ? status : MakeError(CodeOf(all), MessageOf(all) + "; " + MessageOf(status));
  }
  return all;
}

}  // namespace luwu
