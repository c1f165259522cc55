// What a job's storage should hold, in the plainest way there is: each point and checkpoint with
// all its shards. A random workload runs on both, and afterwards, or after a crash, they are
// compared. A shard's content is made from the number of the write, kept in Generation::applied.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/persist/storage_world.h"

namespace luwu::persist {

struct ModelPoint {
  Point point;
  std::map<uint32_t, uint64_t> writes;  // by shard
};

struct ModelState {
  uint64_t epoch = 1;
  std::map<uint64_t, ModelPoint> points;  // by step
  std::map<std::string, ModelPoint> checkpoints;
};

// Mistakes in words; empty: the storage holds what the state says. Points that were given up by
// Confirm alone may be there again after a loss of power.
inline std::string Compare(JobStorage* job, const ModelState& state,
                           const std::vector<uint64_t>& shard_bytes) {
  const auto check = [&](const ModelPoint& expected) -> std::string {
    const auto entries = job->EntriesAt(expected.point);
    if (!entries.ok()) return ToString(entries.status());
    if (entries->size() != expected.writes.size()) return "another number of shards";
    for (const ShardEntry& entry : *entries) {
      const auto read = Read(job, entry);
      if (!read.ok()) return ToString(read.status());
      const uint64_t write = expected.writes.at(entry.shard);
      if (entry.generation.applied != write ||
          *read != Content(entry.shard, write, shard_bytes[entry.shard])) {
        return fmt::format("shard {} is not write {}", entry.shard, write);
      }
    }
    return "";
  };
  if (job->record().epoch != state.epoch) return "another epoch";
  std::map<uint64_t, Point> points;
  for (const Point& point : job->Points()) points[point.step] = point;
  for (const auto& [step, expected] : state.points) {
    if (!points.contains(step) || points[step] != expected.point)
      return fmt::format("no point {}", step);
    if (std::string problem = check(expected); !problem.empty())
      return fmt::format("point {}: {}", step, problem);
    points.erase(step);
  }
  for (const auto& [step, point] : points) {
    if (state.points.empty() || step > state.points.begin()->first)
      return fmt::format("point {} should not be", step);
  }
  const std::vector<Checkpoint> checkpoints = job->Checkpoints();
  if (checkpoints.size() != state.checkpoints.size()) return "another number of checkpoints";
  for (const Checkpoint& checkpoint : checkpoints) {
    const auto expected = state.checkpoints.find(checkpoint.name);
    if (expected == state.checkpoints.end() || checkpoint.point != expected->second.point)
      return fmt::format("checkpoint {} is not as it was made", checkpoint.name);
    if (std::string problem = check(expected->second); !problem.empty())
      return fmt::format("checkpoint {}: {}", checkpoint.name, problem);
  }
  return "";
}

// One random operation on both; `before` is kept for a crash in the middle of it.
class Workload {
 public:
  Workload(uint64_t seed, std::vector<uint64_t> shard_bytes, bool logged_too)
      : random_(seed), shard_bytes_(std::move(shard_bytes)), logged_too_(logged_too) {}

  // False when the storage refused: it may hold before() or state().
  bool Step(JobStorage* job) {
    before_ = state_;
    switch (state_.points.empty() ? 0 : Roll(12)) {
      case 8:
        return WriteAndDiscard(job);
      case 9:
        return Checkpointing(job);
      case 10:
        return DeleteCheckpoint(job);
      case 11:
        return RollBack(job);
      default:
        return CommitAndConfirm(job);
    }
  }
  const ModelState& before() const { return before_; }
  const ModelState& state() const { return state_; }
  const std::vector<uint64_t>& shard_bytes() const { return shard_bytes_; }
  std::mt19937_64* random() { return &random_; }
  // The numbers of writes go on after this one.
  void CountFrom(uint64_t write) { writes_ = write; }
  // After a crash: this is how it turned out.
  void Settle(const ModelState& state) { before_ = state_ = state; }

 private:
  uint64_t Roll(uint64_t sides) { return random_() % sides; }

  StatusOr<ShardEntry> WriteOne(JobStorage* job, uint32_t shard, uint64_t step) {
    const uint64_t write = ++writes_;
    StatusOr<Generation> generation = Write(job, shard, Content(shard, write, shard_bytes_[shard]));
    if (!generation.ok()) return generation.status();
    generation->step = step;
    generation->applied = write;
    return ShardEntry{shard, *generation};
  }

  bool CommitAndConfirm(JobStorage* job) {
    const bool first = state_.points.empty();
    const uint64_t step = first ? 1 : state_.points.rbegin()->first + 1 + Roll(2);
    ModelPoint next;
    if (!first) next.writes = state_.points.rbegin()->second.writes;
    next.point = {.step = step, .epoch = state_.epoch, .finite_steps = uint32_t(Roll(9))};
    std::vector<ShardEntry> changed;
    for (uint32_t shard = 0; shard < shard_bytes_.size(); ++shard) {
      if (!first && Roll(3) == 0) continue;
      StatusOr<ShardEntry> entry = WriteOne(job, shard, step);
      if (!entry.ok()) return false;
      changed.push_back(*entry);
      next.writes[shard] = entry->generation.applied;
    }
    state_.points[step] = next;
    const bool logged = logged_too_ && Roll(2) == 0;
    if (!job->Commit(next.point, changed, logged ? SyncLevel::kLogged : SyncLevel::kSynced).ok())
      return false;
    before_ = state_;
    if (Roll(4) == 0) return true;  // the next one confirms
    state_.points.erase(state_.points.begin(), state_.points.find(step));
    job->Confirm(step);
    return true;
  }
  bool WriteAndDiscard(JobStorage* job) {
    const StatusOr<ShardEntry> entry = WriteOne(job, Roll(shard_bytes_.size()), 0);
    if (entry.ok()) job->Discard(entry->generation);
    return entry.ok();
  }
  bool Checkpointing(JobStorage* job) {
    const std::string name = fmt::format("c{}", Roll(4));
    if (state_.checkpoints.contains(name)) return true;
    state_.checkpoints[name] = state_.points.rbegin()->second;
    return job->CreateCheckpoint({name, state_.checkpoints[name].point, 1}).ok();
  }
  bool DeleteCheckpoint(JobStorage* job) {
    if (state_.checkpoints.empty()) return true;
    const std::string name = state_.checkpoints.begin()->first;
    state_.checkpoints.erase(name);
    return job->DeleteCheckpoint(name).ok();
  }
  bool RollBack(JobStorage* job) {
    ModelPoint to = state_.points.begin()->second;
    if (!state_.checkpoints.empty() && Roll(2) == 0) to = state_.checkpoints.rbegin()->second;
    state_.points = {{to.point.step, to}};
    ++state_.epoch;
    return job->RollBack(to.point, state_.epoch).ok();
  }

  std::mt19937_64 random_;
  const std::vector<uint64_t> shard_bytes_;
  const bool logged_too_;
  uint64_t writes_ = 0;
  ModelState before_;
  ModelState state_;
};

}  // namespace luwu::persist
