// A JobStorage in memory, which ends transfers late, on a thread of its own. Outlives the jobs that
// use it, so that a test can let one "crash" and make another from the same storage.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/base/sync.h"
#include "server/persist/job_storage.h"
#include "tests/fakes/late_worker.h"

namespace luwu::fakes {

class MemoryStorage final : public persist::JobStorage {
 public:
  explicit MemoryStorage(persist::JobRecord record = {}) : record_(std::move(record)) {}

  void Hold(bool hold) { worker_.Hold(hold); }  // transfers wait
  void FailReads(uint32_t count) {              // the next ones
    MutexLock lock(mutex_);
    failing_reads_ = count;
  }
  void FailCommits(bool fail) {
    MutexLock lock(mutex_);
    fail_commits_ = fail;
  }
  uint64_t payloads() const {
    MutexLock lock(mutex_);
    return payloads_.size();
  }
  uint64_t payloads_max() const {
    MutexLock lock(mutex_);
    return payloads_max_;
  }
  uint64_t reads() const {
    MutexLock lock(mutex_);
    return reads_;
  }

  void Write(uint32_t, std::byte* data, uint64_t bytes, WriteCallback done) override {
    worker_.Post([this, data, bytes, done = std::move(done)] {
      persist::Generation generation;
      generation.bytes = bytes;
      {
        MutexLock lock(mutex_);
        generation.place = ++last_place_;
        payloads_[generation.place].assign(data, data + bytes);
        payloads_max_ = std::max<uint64_t>(payloads_max_, payloads_.size());
      }
      generation.crc32c = Crc32c({data, bytes});
      done(generation);
    });
  }
  void Read(const persist::ShardEntry& entry, std::byte* data, ReadCallback done) override {
    worker_.Post([this, entry, data, done = std::move(done)] {
      Status status;
      {
        MutexLock lock(mutex_);
        ++reads_;
        const auto found = payloads_.find(entry.generation.place);
        if (failing_reads_ > 0) {
          --failing_reads_;
          status = Error(ErrorCode::kCorrupt, "shard {} cannot be read", entry.shard);
        } else if (found == payloads_.end() || found->second.size() != entry.generation.bytes) {
          status =
              Error(ErrorCode::kCorrupt, "shard {}: nothing of this kind is stored", entry.shard);
        } else {
          std::memcpy(data, found->second.data(), found->second.size());
        }
      }
      done(status);
    });
  }
  void AdoptBuffers(ByteSpan) override {}
  void ForgetBuffers(ByteSpan) override {}
  void Discard(const persist::Generation& generation) override {
    MutexLock lock(mutex_);
    LUWU_CHECK(!Needed().contains(generation.place), "what is in a point is not discarded");
    LUWU_CHECK(payloads_.erase(generation.place) == 1, "what is discarded was written");
  }
  Status Commit(const persist::Point& point, const std::vector<persist::ShardEntry>& changed,
                persist::SyncLevel) override {
    MutexLock lock(mutex_);
    if (fail_commits_) return Error(ErrorCode::kCorrupt, "the device failed");
    LUWU_CHECK(points_.empty() || points_.back().step < point.step, "points ascend");
    for (const persist::ShardEntry& entry : changed) {
      LUWU_CHECK(payloads_.contains(entry.generation.place), "what is committed was written");
      entries_.push_back(entry);
    }
    points_.push_back(point);
    return OkStatus();
  }
  void Confirm(uint64_t step) override {
    MutexLock lock(mutex_);
    while (points_.size() > 1 && points_.front().step < step) points_.erase(points_.begin());
    Collect();
  }
  std::vector<persist::Point> Points() const override {
    MutexLock lock(mutex_);
    return points_;
  }
  std::vector<persist::Checkpoint> Checkpoints() const override {
    MutexLock lock(mutex_);
    return checkpoints_;
  }
  StatusOr<std::vector<persist::ShardEntry>> EntriesAt(const persist::Point& point) const override {
    MutexLock lock(mutex_);
    return At(point.step);
  }
  Status CreateCheckpoint(const persist::Checkpoint& checkpoint) override {
    MutexLock lock(mutex_);
    checkpoints_.push_back(checkpoint);
    return OkStatus();
  }
  Status DeleteCheckpoint(const std::string& name) override {
    MutexLock lock(mutex_);
    if (!held_[name].expired()) return Error(ErrorCode::kState, "'{}' is being exported", name);
    std::erase_if(checkpoints_, [&](const auto& each) { return each.name == name; });
    Collect();
    return OkStatus();
  }
  StatusOr<persist::HeldCheckpoint> HoldCheckpoint(const std::string& name) override {
    MutexLock lock(mutex_);
    for (const persist::Checkpoint& checkpoint : checkpoints_) {
      if (checkpoint.name != name) continue;
      persist::HeldCheckpoint held{checkpoint, At(checkpoint.point.step), held_[name].lock()};
      if (held.hold == nullptr) held.hold = std::make_shared<const std::string>(name);
      held_[name] = held.hold;
      return held;
    }
    return Error(ErrorCode::kNotFound, "no checkpoint '{}'", name);
  }
  Status RollBack(const persist::Point& point, uint64_t epoch) override {
    MutexLock lock(mutex_);
    points_ = {point};
    record_.epoch = epoch;
    record_.restoring.clear();
    Collect();
    std::erase_if(payloads_,
                  [needed = Needed()](const auto& each) { return !needed.contains(each.first); });
    return OkStatus();
  }
  Status NoteRestore(const std::string& checkpoint) override {
    MutexLock lock(mutex_);
    record_.restoring = checkpoint;
    return OkStatus();
  }
  uint64_t used_bytes() const override {
    MutexLock lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [place, payload] : payloads_) bytes += payload.size();
    return bytes;
  }
  void RefuseWaiting(bool) override {}
  persist::JobRecord record() const override {
    MutexLock lock(mutex_);
    return record_;
  }

 private:
  std::vector<persist::ShardEntry> At(uint64_t step) const LUWU_REQUIRES(mutex_) {
    std::map<uint32_t, persist::ShardEntry> newest;
    for (const persist::ShardEntry& entry : entries_) {
      if (entry.generation.step > step) continue;
      const auto [at, is_new] = newest.emplace(entry.shard, entry);
      if (!is_new && at->second.generation.step < entry.generation.step) at->second = entry;
    }
    std::vector<persist::ShardEntry> result;
    for (const auto& [shard, entry] : newest) result.push_back(entry);
    return result;
  }
  std::map<uint64_t, bool> Needed() const LUWU_REQUIRES(mutex_) {
    std::map<uint64_t, bool> places;
    const auto add = [&](uint64_t step) LUWU_REQUIRES(mutex_) {
      for (const persist::ShardEntry& entry : At(step)) places[entry.generation.place] = true;
    };
    for (const persist::Point& point : points_) add(point.step);
    for (const persist::Checkpoint& checkpoint : checkpoints_) add(checkpoint.point.step);
    return places;
  }
  void Collect() LUWU_REQUIRES(mutex_) {
    const std::map<uint64_t, bool> needed = Needed();
    std::erase_if(entries_, [&](const persist::ShardEntry& entry) LUWU_REQUIRES(mutex_) {
      if (needed.contains(entry.generation.place)) return false;
      payloads_.erase(entry.generation.place);
      return true;
    });
  }

  persist::JobRecord record_ LUWU_GUARDED_BY(mutex_);
  mutable Mutex mutex_;
  bool fail_commits_ LUWU_GUARDED_BY(mutex_) = false;
  uint32_t failing_reads_ LUWU_GUARDED_BY(mutex_) = 0;
  uint64_t last_place_ LUWU_GUARDED_BY(mutex_) = 0;
  uint64_t payloads_max_ LUWU_GUARDED_BY(mutex_) = 0;
  uint64_t reads_ LUWU_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::vector<std::byte>> payloads_ LUWU_GUARDED_BY(mutex_);  // by place
  std::vector<persist::ShardEntry> entries_ LUWU_GUARDED_BY(mutex_);
  std::vector<persist::Point> points_ LUWU_GUARDED_BY(mutex_);
  std::vector<persist::Checkpoint> checkpoints_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<const void>> held_ LUWU_GUARDED_BY(mutex_);
  LateWorker worker_;  // last: it uses the rest
};

}  // namespace luwu::fakes
