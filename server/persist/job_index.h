// What the catalogue says about one job, in memory: branches, generations, points, checkpoints; and
// the rule for what is garbage. A generation is needed when, for some point or checkpoint, it is
// the newest of its shard that the point's branch can see and that is not above the point's step.
//
// No I/O and no lock: the job's storage guards it and writes what it decides into the catalogue.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/persist/record.h"

namespace luwu::persist {

class JobIndex {
 public:
  // Recovery: everything the catalogue has, in any order, then Check.
  void Add(const Branch& branch) { branches_[branch.number] = branch; }
  void Add(const StoredGeneration& stored) { rows_[stored.shard].push_back(stored); }
  void Add(const StoredPoint& stored) { points_[stored.point.step] = stored; }
  void Add(const StoredCheckpoint& stored) { checkpoints_[stored.checkpoint.name] = stored; }
  void set_branch(uint32_t branch) { branch_ = branch; }
  // Every branch that is spoken of exists, with a parent below it. kCorrupt.
  Status Check(const std::string& job) const;

  uint32_t branch() const { return branch_; }
  bool has_branches() const { return !branches_.empty(); }
  const std::map<uint64_t, StoredPoint>& points() const { return points_; }
  const std::map<std::string, StoredCheckpoint>& checkpoints() const { return checkpoints_; }

  // By (step, epoch), points first.
  std::optional<StoredPoint> Find(const Point& point) const;
  // By shard.
  std::vector<StoredGeneration> At(const StoredPoint& point) const;
  bool Has(const StoredGeneration& stored) const;
  // Something of this shard, branch and step: a record under the same key.
  bool HasStep(const StoredGeneration& stored) const;
  // All, for the scrubber and for recovery.
  std::vector<StoredGeneration> Generations() const;

  void RemovePoint(uint64_t step) { points_.erase(step); }
  void RemoveCheckpoint(const std::string& name) { checkpoints_.erase(name); }
  // A branch that continues `point`, not added yet.
  Branch Fork(const StoredPoint& point) const;
  // The point is the only one and its branch the current one.
  void SwitchTo(const Branch& branch, const StoredPoint& point);

  // What a job would have that kept only these marks.
  struct Garbage {
    std::vector<StoredGeneration> generations;
    std::vector<uint32_t> branches;
  };
  Garbage FindGarbage() const;
  void Remove(const Garbage& garbage);

 private:
  // Which steps of which branches a point can see: branch -> highest step.
  using View = std::map<uint32_t, uint64_t>;
  View ViewOf(const StoredPoint& point) const;
  static const StoredGeneration* Newest(const std::vector<StoredGeneration>& rows,
                                        const View& view);
  std::vector<View> Views() const;

  std::map<uint32_t, Branch> branches_;
  std::map<uint32_t, std::vector<StoredGeneration>> rows_;  // by shard
  std::map<uint64_t, StoredPoint> points_;                  // by step
  std::map<std::string, StoredCheckpoint> checkpoints_;
  uint32_t branch_ = 1;
};

}  // namespace luwu::persist
