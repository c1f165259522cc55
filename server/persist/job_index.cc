#include "server/persist/job_index.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace luwu::persist {

Status JobIndex::Check(const std::string& job) const {
  const auto unknown = [&](uint32_t branch) {
    return Error(ErrorCode::kCorrupt, "job '{}': the catalogue has no branch {}", job, branch);
  };
  if (!branches_.contains(branch_)) return unknown(branch_);
  for (const auto& [number, branch] : branches_) {
    if (branch.parent >= number) return unknown(branch.parent);
  }
  for (const auto& [step, stored] : points_) {
    if (!branches_.contains(stored.branch)) return unknown(stored.branch);
  }
  for (const auto& [name, stored] : checkpoints_) {
    if (!branches_.contains(stored.branch)) return unknown(stored.branch);
  }
  return OkStatus();
}

std::optional<StoredPoint> JobIndex::Find(const Point& point) const {
  const auto same = [&](const Point& other) {
    return other.step == point.step && other.epoch == point.epoch;
  };
  if (const auto found = points_.find(point.step); found != points_.end()) {
    if (same(found->second.point)) return found->second;
  }
  for (const auto& [name, stored] : checkpoints_) {
    if (same(stored.checkpoint.point)) return StoredPoint{stored.branch, stored.checkpoint.point};
  }
  return std::nullopt;
}

JobIndex::View JobIndex::ViewOf(const StoredPoint& point) const {
  View view;
  uint64_t step = point.point.step;
  for (uint32_t number = point.branch; number != 0;) {
    view[number] = step;
    const auto found = branches_.find(number);
    if (found == branches_.end()) break;
    step = std::min(step, found->second.fork_step);
    number = found->second.parent;
  }
  return view;
}

const StoredGeneration* JobIndex::Newest(const std::vector<StoredGeneration>& rows,
                                         const View& view) {
  const auto key = [](const StoredGeneration& row) {
    return std::tuple(row.branch, row.generation.step);
  };
  const StoredGeneration* newest = nullptr;
  for (const StoredGeneration& row : rows) {
    const auto seen = view.find(row.branch);
    if (seen == view.end() || row.generation.step > seen->second) continue;
    // A branch has a higher number and higher steps than those it continues.
    if (newest == nullptr || key(row) > key(*newest)) newest = &row;
  }
  return newest;
}

std::vector<JobIndex::View> JobIndex::Views() const {
  std::vector<View> views;
  for (const auto& [step, stored] : points_) views.push_back(ViewOf(stored));
  for (const auto& [name, stored] : checkpoints_)
    views.push_back(ViewOf(StoredPoint{stored.branch, stored.checkpoint.point}));
  return views;
}

std::vector<StoredGeneration> JobIndex::At(const StoredPoint& point) const {
  const View view = ViewOf(point);
  std::vector<StoredGeneration> out;
  for (const auto& [shard, rows] : rows_) {
    if (const StoredGeneration* row = Newest(rows, view); row != nullptr) out.push_back(*row);
  }
  return out;
}

bool JobIndex::Has(const StoredGeneration& stored) const {
  const auto rows = rows_.find(stored.shard);
  return rows != rows_.end() &&
         std::find(rows->second.begin(), rows->second.end(), stored) != rows->second.end();
}

bool JobIndex::HasStep(const StoredGeneration& stored) const {
  const auto rows = rows_.find(stored.shard);
  return rows != rows_.end() &&
         std::any_of(rows->second.begin(), rows->second.end(), [&](const StoredGeneration& row) {
           return row.branch == stored.branch && row.generation.step == stored.generation.step;
         });
}

std::vector<StoredGeneration> JobIndex::Generations() const {
  std::vector<StoredGeneration> all;
  for (const auto& [shard, rows] : rows_) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

Branch JobIndex::Fork(const StoredPoint& point) const {
  Branch branch{branches_.rbegin()->first + 1, point.branch, point.point.step};
  std::set<uint32_t> with_rows;
  for (const auto& [shard, rows] : rows_) {
    for (const StoredGeneration& row : rows) with_rows.insert(row.branch);
  }
  // Lines in which nothing was stored are skipped, so that restarts do not make a long chain.
  while (branch.parent != 0 && !with_rows.contains(branch.parent)) {
    const Branch& parent = branches_.at(branch.parent);
    branch.fork_step = std::min(branch.fork_step, parent.fork_step);
    branch.parent = parent.parent;
  }
  return branch;
}

void JobIndex::SwitchTo(const Branch& branch, const StoredPoint& point) {
  branches_[branch.number] = branch;
  branch_ = branch.number;
  points_.clear();
  points_[point.point.step] = point;
}

JobIndex::Garbage JobIndex::FindGarbage() const {
  const std::vector<View> views = Views();
  Garbage garbage;
  for (const auto& [shard, rows] : rows_) {
    std::set<const StoredGeneration*> needed;
    for (const View& view : views) needed.insert(Newest(rows, view));
    for (const StoredGeneration& row : rows) {
      if (!needed.contains(&row)) garbage.generations.push_back(row);
    }
  }
  std::set<uint32_t> used = {branch_};
  for (const View& view : views) {
    for (const auto& [number, step] : view) used.insert(number);
  }
  for (const auto& [number, branch] : branches_) {
    if (!used.contains(number)) garbage.branches.push_back(number);
  }
  return garbage;
}

void JobIndex::Remove(const Garbage& garbage) {
  for (const StoredGeneration& stored : garbage.generations) {
    std::vector<StoredGeneration>& rows = rows_[stored.shard];
    rows.erase(std::remove(rows.begin(), rows.end(), stored), rows.end());
    if (rows.empty()) rows_.erase(stored.shard);
  }
  for (const uint32_t number : garbage.branches) branches_.erase(number);
}

}  // namespace luwu::persist
