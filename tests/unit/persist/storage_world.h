// A data directory of a test and blocking calls over the storage in it: what every test of
// server/persist needs. Contents are made from (shard, step), so that a reader can check them
// without being told what was written.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "server/persist/node_store.h"

namespace luwu::persist {

// An empty folder that goes away with the object.
class TestFolder {
 public:
  explicit TestFolder(const std::string& parent = std::filesystem::temp_directory_path().string()) {
    std::string name = parent + "/luwu_persist_XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<std::byte> Content(uint32_t shard, uint64_t step, uint64_t bytes) {
  std::vector<std::byte> data(bytes);
  uint64_t x = (uint64_t{shard} << 32) ^ (step * 0x9e3779b97f4a7c15ull) ^ bytes;
  for (std::byte& b : data) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return data;
}

// Memory as transfers want it.
class IoBuffer {
 public:
  explicit IoBuffer(uint64_t bytes)
      : memory_(std::move(AllocateHuge(AlignUp(bytes, kIoAlignment) + kIoAlignment).value())) {}
  std::byte* data() { return memory_.data(); }

 private:
  Mapping memory_;
};

inline StatusOr<Generation> Write(JobStorage* job, uint32_t shard,
                                  const std::vector<std::byte>& content) {
  IoBuffer buffer(content.size());
  std::copy(content.begin(), content.end(), buffer.data());
  std::promise<StatusOr<Generation>> result;
  job->Write(shard, buffer.data(), content.size(),
             [&](StatusOr<Generation> done) { result.set_value(std::move(done)); });
  return result.get_future().get();
}

// Content(shard, step, bytes), with the step filled in.
inline StatusOr<ShardEntry> WriteStep(JobStorage* job, uint32_t shard, uint64_t step,
                                      uint64_t bytes) {
  StatusOr<Generation> generation = Write(job, shard, Content(shard, step, bytes));
  if (!generation.ok()) return generation.status();
  generation->step = step;
  generation->applied = step;
  return ShardEntry{shard, *generation};
}

inline StatusOr<std::vector<std::byte>> Read(JobStorage* job, const ShardEntry& entry) {
  IoBuffer buffer(entry.generation.bytes);
  std::promise<Status> result;
  job->Read(entry, buffer.data(), [&](Status status) { result.set_value(std::move(status)); });
  Status status = result.get_future().get();
  if (!status.ok()) return status;
  return std::vector<std::byte>(buffer.data(), buffer.data() + entry.generation.bytes);
}

// Writes every shard's content of the step and makes a point of it.
inline Status CommitStep(JobStorage* job, const std::vector<uint64_t>& shard_bytes, uint64_t step,
                         SyncLevel level = SyncLevel::kSynced) {
  std::vector<ShardEntry> changed;
  for (uint32_t shard = 0; shard < shard_bytes.size(); ++shard) {
    StatusOr<ShardEntry> entry = WriteStep(job, shard, step, shard_bytes[shard]);
    if (!entry.ok()) return entry.status();
    changed.push_back(*entry);
  }
  return job->Commit(Point{.step = step, .epoch = job->record().epoch}, changed, level);
}

// OK when every shard at the point is as its generation's step says.
inline Status CheckPoint(JobStorage* job, const Point& point,
                         const std::vector<uint64_t>& shard_bytes) {
  const StatusOr<std::vector<ShardEntry>> entries = job->EntriesAt(point);
  if (!entries.ok()) return entries.status();
  if (entries->size() != shard_bytes.size())
    return Error(ErrorCode::kInternal, "{} shards", entries->size());
  for (const ShardEntry& entry : *entries) {
    const StatusOr<std::vector<std::byte>> read = Read(job, entry);
    if (!read.ok()) return read.status();
    if (*read != Content(entry.shard, entry.generation.step, shard_bytes[entry.shard]))
      return Error(ErrorCode::kInternal, "shard {} has other bytes", entry.shard);
  }
  return OkStatus();
}

inline StorageOptions OptionsFor(const std::string& path, Engine engine = Engine::kExtents) {
  StorageOptions options;
  options.path = path;
  options.node_name = "node-a";
  options.engine = engine;
  options.reserve_bytes = 4 * kMiB;
  return options;
}

inline JobRecord Record(const std::string& name) {
  return {.name = name, .epoch = 1, .spec = "spec of " + name, .nodes_fingerprint = 42};
}

}  // namespace luwu::persist
