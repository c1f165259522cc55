#include "tests/bench/spill/storage_passes.h"

#include <chrono>
#include <deque>
#include <functional>
#include <utility>

#include "common/base/sync.h"

namespace luwu::bench {
namespace {

using persist::Generation;
using persist::Point;
using persist::ShardEntry;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What I/O threads have finished, for the thread that makes the pass.
class Finished {
 public:
  struct Event {
    uint32_t buffer = 0;
    uint32_t shard = 0;
    bool written = false;
    StatusOr<Generation> result;
  };
  void Put(Event event) {
    {
      const MutexLock lock(mutex_);
      events_.push_back(std::move(event));
    }
    changed_.NotifyOne();
  }
  Event Take() {
    const MutexLock lock(mutex_);
    while (events_.empty()) changed_.Wait(mutex_);
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace

StatusOr<std::unique_ptr<StoragePasses>> StoragePasses::Create(
    const StoragePassesOptions& options) {
  std::unique_ptr<StoragePasses> passes(new StoragePasses(options));
  RETURN_IF_ERROR(passes->Start());
  for (int generation = 0; generation < 2; ++generation) {
    const StatusOr<double> written = passes->Overwrite();
    if (!written.ok()) return written.status();
  }
  return passes;
}

StoragePasses::~StoragePasses() {
  if (node_ != nullptr) node_->Shutdown();
}

Status StoragePasses::Start() {
  ASSIGN_OR_RETURN(memory_, AllocateHuge(options_.buffers * options_.shard_bytes));
  uint64_t x = 7;
  for (std::byte& byte : memory_.span()) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(x >> 56);
  }
  ASSIGN_OR_RETURN(node_, persist::NodeStorage::Open(options_.storage));
  ASSIGN_OR_RETURN(
      job_, node_->CreateJob({.name = "bench", .epoch = 1, .spec = "", .nodes_fingerprint = 0},
                             2 * options_.shards * options_.shard_bytes));
  job_->AdoptBuffers(memory_.span());
  return OkStatus();
}

StatusOr<double> StoragePasses::Pass(bool read, bool write) {
  std::vector<ShardEntry> present;
  if (read) {
    ASSIGN_OR_RETURN(present, job_->EntriesAt({.step = step_, .epoch = 1}));
  }
  const double begin = Now();
  Finished finished;
  std::vector<ShardEntry> changed;
  uint32_t next = 0;
  uint32_t busy = 0;
  const auto data = [&](uint32_t buffer) { return memory_.data() + buffer * options_.shard_bytes; };
  const auto start_write = [&](uint32_t buffer, uint32_t shard) {
    job_->Write(shard, data(buffer), options_.shard_bytes,
                [&finished, buffer, shard](StatusOr<Generation> result) {
                  finished.Put({buffer, shard, true, std::move(result)});
                });
  };
  const auto start_next = [&](uint32_t buffer) {
    if (next == options_.shards) return;
    const uint32_t shard = next++;
    ++busy;
    if (!read) return start_write(buffer, shard);
    job_->Read(present[shard], data(buffer), [&finished, buffer, shard](Status status) {
      StatusOr<Generation> result = Generation();
      if (!status.ok()) result = status;
      finished.Put({buffer, shard, false, std::move(result)});
    });
  };
  for (uint32_t buffer = 0; buffer < options_.buffers; ++buffer) start_next(buffer);
  Status failed = OkStatus();
  while (busy > 0) {
    Finished::Event event = finished.Take();
    if (!event.result.ok()) failed = event.result.status();
    if (event.written && event.result.ok()) {
      changed.push_back({event.shard, *event.result});
      changed.back().generation.step = step_ + 1;
    }
    if (!event.written && write && failed.ok()) {
      start_write(event.buffer, event.shard);
      continue;
    }
    --busy;
    if (failed.ok()) start_next(event.buffer);
  }
  RETURN_IF_ERROR(failed);
  if (write) {
    const double committing = Now();
    const Point point{.step = ++step_, .epoch = 1};
    RETURN_IF_ERROR(job_->Commit(point, changed, persist::SyncLevel::kSynced));
    job_->Confirm(step_);
    last_commit_s_ = Now() - committing;
  }
  return Now() - begin;
}

StatusOr<double> StoragePasses::Overwrite() { return Pass(false, true); }
StatusOr<double> StoragePasses::Read() { return Pass(true, false); }
StatusOr<double> StoragePasses::ReadAndWrite() { return Pass(true, true); }

}  // namespace luwu::bench
