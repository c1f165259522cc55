#include "server/service/checkpoint_maker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"

namespace luwu {
namespace {

// Asking takes one round trip; a node that stands still must not hold the training for longer.
constexpr uint64_t kHoldMs = 2'000;

// Lets go of a held decision.
class HeldStep {
 public:
  explicit HeldStep(std::shared_ptr<CommitCoordinator> coordinator)
      : coordinator_(std::move(coordinator)) {}
  ~HeldStep() { Release(); }
  HeldStep(const HeldStep&) = delete;
  HeldStep& operator=(const HeldStep&) = delete;
  void Release() {
    if (coordinator_ != nullptr) std::exchange(coordinator_, nullptr)->Release();
  }

 private:
  std::shared_ptr<CommitCoordinator> coordinator_;
};

Status FirstError(const std::vector<Status>& answers) {
  for (const Status& answer : answers) RETURN_IF_ERROR(answer);
  return OkStatus();
}

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::vector<uint32_t> CheckpointMaker::Participants() const {
  std::vector<uint32_t> nodes;
  for (uint32_t node = 0; node < registry_->nodes().size(); ++node) {
    if (registry_->nodes()[node].weight > 0) nodes.push_back(node);
  }
  return nodes;
}

Status CheckpointMaker::CheckPlace(const std::string& job) const {
  if (!registry_->is_lead()) {
    return Error(ErrorCode::kUnsupported,
                 "node {} makes no checkpoints; ask the lead, node {} ({})", registry_->node_name(),
                 registry_->lead_node().name, registry_->lead_node().control_address);
  }
  return registry_->ListStored(job).status();
}

Status CheckpointMaker::AskForPoint(const std::string& job, uint64_t epoch, uint64_t step) {
  const std::vector<uint32_t> nodes = Participants();
  return FirstError(AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->MakePoint(job, epoch, step));
    } else {
      peers_->MakePoint(nodes[i], job, epoch, step, std::move(done));
    }
  }));
}

// Of the open step or, when a node has updated in place already, of the one after it.
StatusOr<uint64_t> CheckpointMaker::BeginPoint(const std::string& job, uint64_t epoch,
                                               uint64_t step) {
  Status asked = AskForPoint(job, epoch, step);
  if (CodeOf(asked) == ErrorCode::kState) {
    ++step;
    asked = AskForPoint(job, epoch, step);
  }
  RETURN_IF_ERROR(asked);
  return step;
}

Status CheckpointMaker::Keep(const CheckpointRequest& request) {
  const std::vector<uint32_t> nodes = Participants();
  return FirstError(AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->KeepCheckpoint(request));
    } else {
      peers_->KeepCheckpoint(nodes[i], request, std::move(done));
    }
  }));
}

StatusOr<persist::Checkpoint> CheckpointMaker::TryCreate(const std::string& job,
                                                         const std::string& name,
                                                         TimePoint deadline, Hold hold) {
  ASSIGN_OR_RETURN(const DescribedJob described, registry_->Describe(job));
  ASSIGN_OR_RETURN(const std::shared_ptr<CommitCoordinator> coordinator,
                   registry_->FindCoordinator(job, described.epoch));
  const TimePoint until = hold == Hold::kUntilKept ? deadline : DeadlineAfter(kHoldMs);
  ASSIGN_OR_RETURN(const uint64_t open, coordinator->Hold(until));
  HeldStep held(coordinator);
  ASSIGN_OR_RETURN(const uint64_t step, BeginPoint(job, described.epoch, open));
  // The point of the next step comes with the decision of this one.
  if (hold == Hold::kWhileAsking || step > open) held.Release();
  const std::vector<Status> durable = AskAll<Status>(1, [&](size_t, PeerClient::Done done) {
    coordinator->AwaitDurable(step, deadline, std::move(done));
  });
  RETURN_IF_ERROR(durable[0]);
  const CheckpointRequest request{.job = job,
                                  .epoch = described.epoch,
                                  .name = name,
                                  .step = step,
                                  .created_unix_s = UnixSeconds()};
  RETURN_IF_ERROR(Keep(request));
  return persist::Checkpoint{.name = name,
                             .point = {.step = step, .epoch = described.epoch},
                             .created_unix_s = request.created_unix_s};
}

StatusOr<persist::Checkpoint> CheckpointMaker::Create(const std::string& job,
                                                      const std::string& name, TimePoint deadline) {
  RETURN_IF_ERROR(CheckPlace(job));
  for (const StatusOr<StoredPoints>& stored : AskStored(job)) {
    RETURN_IF_ERROR(stored.status());
    for (const persist::Checkpoint& checkpoint : stored->checkpoints) {
      if (checkpoint.name != name) continue;
      return Error(
          ErrorCode::kAlreadyExists,
          "job {} has a checkpoint '{}' already, perhaps not on all nodes; delete it first "
          "or choose another name",
          job, name);
    }
  }
  StatusOr<persist::Checkpoint> made = TryCreate(job, name, deadline, Hold::kWhileAsking);
  while (CodeOf(made.status()) == ErrorCode::kNotFound && MillisecondsUntil(deadline) > 0) {
    // A newer point has replaced it on some node before it was kept there.
    Delete(job, name).IgnoreError();
    made = TryCreate(job, name, deadline, Hold::kUntilKept);
  }
  if (!made.ok()) {
    Delete(job, name).IgnoreError();  // what some nodes have kept is of no use
    return made.status();
  }
  LogInfo("checkpoint_created", "job={} name=\"{}\" step={}", job, name, made->point.step);
  return made;
}

std::vector<StatusOr<StoredPoints>> CheckpointMaker::AskStored(const std::string& job) {
  const std::vector<uint32_t> nodes = Participants();
  return AskAll<StatusOr<StoredPoints>>(nodes.size(), [&](size_t i, PeerClient::PointsDone done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->ListStored(job));
    } else {
      peers_->ListStored(nodes[i], job, std::move(done));
    }
  });
}

StatusOr<std::vector<persist::Checkpoint>> CheckpointMaker::List(const std::string& job) {
  RETURN_IF_ERROR(CheckPlace(job));
  const std::vector<StatusOr<StoredPoints>> stored = AskStored(job);
  for (const StatusOr<StoredPoints>& answer : stored) RETURN_IF_ERROR(answer.status());
  std::vector<persist::Checkpoint> complete;
  for (const persist::Checkpoint& checkpoint : stored.front()->checkpoints) {
    const auto has_it = [&](const StatusOr<StoredPoints>& answer) {
      return std::any_of(answer->checkpoints.begin(), answer->checkpoints.end(),
                         [&](const persist::Checkpoint& other) {
                           return other.name == checkpoint.name &&
                                  SamePoint(other.point, checkpoint.point);
                         });
    };
    if (std::all_of(stored.begin(), stored.end(), has_it)) complete.push_back(checkpoint);
  }
  std::stable_sort(complete.begin(), complete.end(), [](const auto& one, const auto& other) {
    return one.created_unix_s < other.created_unix_s;
  });
  return complete;
}

Status CheckpointMaker::Delete(const std::string& job, const std::string& name) {
  RETURN_IF_ERROR(CheckPlace(job));
  const std::vector<uint32_t> nodes = Participants();
  const std::vector<Status> answers =
      AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
        if (nodes[i] == registry_->self()) {
          done(registry_->DropCheckpoint(job, name));
        } else {
          peers_->DropCheckpoint(nodes[i], job, name, std::move(done));
        }
      });
  bool found = false;
  for (const Status& answer : answers) {
    if (!answer.ok() && CodeOf(answer) != ErrorCode::kNotFound) return answer;
    found = found || answer.ok();
  }
  if (found) return OkStatus();
  return Error(ErrorCode::kNotFound, "job {} has no checkpoint '{}'", job, name);
}

StatusOr<persist::Point> CheckpointMaker::Restore(const std::string& job, const std::string& name,
                                                  TimePoint deadline) {
  RETURN_IF_ERROR(CheckPlace(job));
  return recovery_->Restore(job, name, deadline);
}

}  // namespace luwu
