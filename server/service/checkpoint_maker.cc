#include "server/service/checkpoint_maker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"

namespace luwu {
namespace {

// Asking takes one round trip; a node that stands still must not hold the training for longer.
constexpr uint64_t kHoldMs = 2'000;
// For taking back what a failed attempt has kept: whoever asked has waited long enough.
constexpr uint64_t kCleanUpMs = 500;

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

Status CheckpointMaker::AskForPoint(const PeerClient::PointRequest& point, TimePoint deadline) {
  const std::vector<uint32_t> nodes = Participants();
  return AllErrors(AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->MakePoint(point.job, point.epoch, point.step));
    } else {
      peers_->MakePoint(nodes[i], point, deadline, std::move(done));
    }
  }));
}

// Of the open step or, when a node has updated in place already, of the one after it.
StatusOr<uint64_t> CheckpointMaker::BeginPoint(PeerClient::PointRequest point, TimePoint deadline) {
  Status asked = AskForPoint(point, deadline);
  if (CodeOf(asked) == ErrorCode::kState) {
    ++point.step;
    asked = AskForPoint(point, deadline);
  }
  RETURN_IF_ERROR(asked);
  return point.step;
}

Status CheckpointMaker::Keep(const CheckpointRequest& request, TimePoint deadline) {
  const std::vector<uint32_t> nodes = Participants();
  return AllErrors(AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->KeepCheckpoint(request));
    } else {
      peers_->KeepCheckpoint(nodes[i], request, deadline, std::move(done));
    }
  }));
}

StatusOr<persist::Checkpoint> CheckpointMaker::TryCreate(const std::string& job,
                                                         const std::string& name,
                                                         const Caller& caller, Hold hold) {
  const TimePoint deadline = caller.deadline();
  ASSIGN_OR_RETURN(const DescribedJob described, registry_->Describe(job));
  ASSIGN_OR_RETURN(const std::shared_ptr<CommitCoordinator> coordinator,
                   registry_->FindCoordinator(job, described.epoch));
  const TimePoint until = hold == Hold::kUntilKept ? deadline : DeadlineAfter(kHoldMs);
  ASSIGN_OR_RETURN(const uint64_t open, coordinator->Hold(until));
  HeldStep held(coordinator);
  ASSIGN_OR_RETURN(const uint64_t step, BeginPoint({job, described.epoch, open}, deadline));
  // The point of the next step comes with the decision of this one.
  if (hold == Hold::kWhileAsking || step > open) held.Release();
  const std::vector<Status> durable = AskAll<Status>(
      1,
      [&](size_t, PeerClient::Done done) {
        coordinator->AwaitDurable(step, deadline, std::move(done));
      },
      &caller);
  RETURN_IF_ERROR(durable[0]);
  const CheckpointRequest request{.job = job,
                                  .epoch = described.epoch,
                                  .name = name,
                                  .step = step,
                                  .created_unix_s = UnixSeconds()};
  RETURN_IF_ERROR(Keep(request, deadline));
  return persist::Checkpoint{.name = name,
                             .point = {.step = step, .epoch = described.epoch},
                             .created_unix_s = request.created_unix_s};
}

StatusOr<persist::Checkpoint> CheckpointMaker::Create(const std::string& job,
                                                      const std::string& name,
                                                      const Caller& caller) {
  RETURN_IF_ERROR(CheckPlace(job));
  ASSIGN_OR_RETURN(const CheckpointClaims::Claim claim,
                   claims_.Take(job, name, CheckpointClaims::Work::kMake, caller));
  const std::vector<StatusOr<StoredPoints>> answers = AskStored(job, caller.deadline());
  RETURN_IF_ERROR(AllErrors(answers));
  for (const StatusOr<StoredPoints>& stored : answers) {
    for (const persist::Checkpoint& checkpoint : stored->checkpoints) {
      if (checkpoint.name != name) continue;
      return Error(
          ErrorCode::kAlreadyExists,
          "job {} has a checkpoint '{}' already, perhaps not on all nodes; delete it first "
          "or choose another name",
          job, name);
    }
  }
  StatusOr<persist::Checkpoint> made = TryCreate(job, name, caller, Hold::kWhileAsking);
  while (CodeOf(made.status()) == ErrorCode::kNotFound && caller.waits()) {
    // A newer point has replaced it on some node before it was kept there.
    Drop(job, name, caller.deadline()).IgnoreError();
    made = TryCreate(job, name, caller, Hold::kUntilKept);
  }
  if (!made.ok()) {
    // What some nodes have kept is of no use.
    Drop(job, name, DeadlineAfter(kCleanUpMs)).IgnoreError();
    return made.status();
  }
  LogInfo("checkpoint_created", "job={} name=\"{}\" step={}", job, name, made->point.step);
  return made;
}

std::vector<StatusOr<StoredPoints>> CheckpointMaker::AskStored(const std::string& job,
                                                               TimePoint deadline) {
  const std::vector<uint32_t> nodes = Participants();
  return AskAll<StatusOr<StoredPoints>>(nodes.size(), [&](size_t i, PeerClient::PointsDone done) {
    if (nodes[i] == registry_->self()) {
      done(registry_->ListStored(job));
    } else {
      peers_->ListStored(nodes[i], job, deadline, std::move(done));
    }
  });
}

StatusOr<std::vector<persist::Checkpoint>> CheckpointMaker::List(const std::string& job,
                                                                 TimePoint deadline) {
  RETURN_IF_ERROR(CheckPlace(job));
  const std::vector<StatusOr<StoredPoints>> stored = AskStored(job, deadline);
  RETURN_IF_ERROR(AllErrors(stored));
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
    // Seconds are coarse, and the nodes keep them by name.
    return std::pair(one.created_unix_s, one.point.step) <
           std::pair(other.created_unix_s, other.point.step);
  });
  return complete;
}

Status CheckpointMaker::Delete(const std::string& job, const std::string& name,
                               const Caller& caller) {
  RETURN_IF_ERROR(CheckPlace(job));
  ASSIGN_OR_RETURN(const CheckpointClaims::Claim claim,
                   claims_.Take(job, name, CheckpointClaims::Work::kDrop, caller));
  if (caller.gone()) return Error(ErrorCode::kCancelled, "the caller gave up");
  return Drop(job, name, caller.deadline());
}

Status CheckpointMaker::Drop(const std::string& job, const std::string& name, TimePoint deadline) {
  const std::vector<uint32_t> nodes = Participants();
  const std::vector<Status> answers =
      AskAll<Status>(nodes.size(), [&](size_t i, PeerClient::Done done) {
        if (nodes[i] == registry_->self()) {
          done(registry_->DropCheckpoint(job, name));
        } else {
          peers_->DropCheckpoint(nodes[i], {job, name}, deadline, std::move(done));
        }
      });
  std::vector<Status> failed;
  bool found = false;
  for (const Status& answer : answers) {
    if (!answer.ok() && CodeOf(answer) != ErrorCode::kNotFound) failed.push_back(answer);
    found = found || answer.ok();
  }
  RETURN_IF_ERROR(AllErrors(failed));
  if (found) return OkStatus();
  return Error(ErrorCode::kNotFound, "job {} has no checkpoint '{}'", job, name);
}

StatusOr<persist::Point> CheckpointMaker::Restore(const std::string& job, const std::string& name,
                                                  const Caller& caller) {
  RETURN_IF_ERROR(CheckPlace(job));
  ASSIGN_OR_RETURN(const CheckpointClaims::Claim claim,
                   claims_.Take(job, name, CheckpointClaims::Work::kRestore, caller));
  return recovery_->Restore(job, name, caller);
}

}  // namespace luwu
