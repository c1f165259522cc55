// The control plane towards one daemon, as plain structs: the only files of the library that see
// gRPC and generated types are session_rpc*.
//
// Calls are asynchronous; `done` runs once, on a gRPC thread or inside the call, also when the call
// is cut short by Shutdown (kCancelled). Errors come annotated with the node's name and address.
// Every call has a deadline. Streams run on the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/hmac.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/rpc/tls.h"
#include "common/tensor/job_spec.h"
#include "common/tensor/placement.h"
#include "common/transport/region.h"

namespace luwu::client {

struct NodeList {
  std::vector<Node> nodes;
  uint32_t self = 0;
  uint64_t fingerprint = 0;
  std::string boot_id;
};

struct JoinReply {
  uint64_t epoch = 0;
  bool created = false;
  bool loaded = false;
  uint64_t current_step = 0;
  uint64_t lineage = 0;  // the job's first epoch, which stays when it is rolled back
  std::string failure;   // not empty: the job accepts no further step, and why
};

enum class JobPhase : uint8_t { kLive = 1, kRecovering = 2, kLost = 3 };

struct JobState {
  uint64_t epoch = 0;
  uint64_t lineage = 0;
  uint64_t first_step = 0;  // under this epoch
  JobPhase phase = JobPhase::kLive;
  std::string detail;  // recovering, lost: what for, why
};

struct OpenRequest {
  std::string job;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint64_t restart_count = 0;
  std::string host;
  uint32_t pid = 0;
};

struct OpenReply {
  uint64_t session_id = 0;
  Secret secret = {};
  uint32_t heartbeat_ms = 0;
  uint32_t lease_ms = 0;
  uint64_t current_step = 0;
  uint32_t window_slots = 0;
};

enum class StepOutcome : uint8_t { kApplied = 1, kSkipped = 2, kFailed = 3 };

struct BeginReply {
  double loss_scale = 1;  // of the step that was begun
};

struct CommitReply {
  StepOutcome outcome = StepOutcome::kApplied;
  std::string culprit;
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  double clip_factor = 1;
  double loss_scale = 1;  // of the next step
  Durability durability = Durability::kMemory;
};

struct Nothing {};

// Values equal luwu.v1.Quantity and luwu_quantity.
enum class ReadQuantity : uint8_t { kMaster = 1, kMoment1 = 2, kMoment2 = 3, kMoment3 = 4 };

// How the client will dial the data plane.
struct DataLink {
  uint32_t connections = 1;
  bool verbs = false;
};

class NodeRpc {
 public:
  template <typename T>
  using Done = std::function<void(StatusOr<T>)>;

  // `name` annotates errors: "node n1 (127.0.0.1:7001)".
  NodeRpc(const std::string& address, const std::string& name,
          const rpc::Credentials& credentials = nullptr);
  // Cancels what is left and waits until every `done` has run.
  ~NodeRpc();

  void ListNodes(TimePoint deadline, Done<NodeList> done);
  void CreateOrJoin(const JobSpec& spec, uint64_t epoch, uint64_t nodes_fingerprint,
                    TimePoint deadline, Done<JoinReply> done);
  void DescribeJob(const std::string& job, TimePoint deadline, Done<JobState> done);
  struct Deletion {
    std::string job;
    uint64_t epoch = 0;  // 0: any
    bool force = false;  // also with open sessions
  };
  void DeleteJob(const Deletion& deletion, TimePoint deadline, Done<Nothing> done);
  void OpenSession(const OpenRequest& request, TimePoint deadline, Done<OpenReply> done);
  void ExchangeRegions(const std::vector<transport::RegionDescriptor>& regions,
                       const DataLink& link, TimePoint deadline,
                       Done<std::vector<transport::RegionDescriptor>> done);
  void Heartbeat(TimePoint deadline, Done<uint64_t> done);  // the current step
  void CloseSession(TimePoint deadline, Done<Nothing> done);
  void BeginStep(uint64_t step, const std::vector<HyperParameters>& groups, TimePoint deadline,
                 Done<BeginReply> done);
  // The daemon answers by `deadline`; the call itself waits a little longer.
  void Commit(uint64_t step, TimePoint deadline, Done<CommitReply> done);
  void FinishLoad(bool allow_missing, TimePoint deadline, Done<Nothing> done);

  // Writes masters: any number of Write calls, then Finish. One thread.
  class LoadStream {
   public:
    virtual ~LoadStream() = default;
    struct Piece {
      uint32_t layer = 0;
      uint32_t shard = 0;
      uint64_t offset = 0;  // elements within the shard
      std::span<const float> values;
    };
    // Splits the piece into messages. False: the daemon ended the stream; Finish says why.
    virtual bool Write(const Piece& piece) = 0;
    virtual Status Finish() = 0;
  };
  std::unique_ptr<LoadStream> OpenLoad(TimePoint deadline);

  struct ReadPiece {
    uint32_t shard = 0;
    uint64_t offset = 0;  // elements within the shard
    uint64_t version = 0;
    std::string bytes;  // fp32, little-endian
  };
  struct ReadArguments {
    std::string job;
    uint64_t epoch = 0;
    uint32_t layer = 0;
    ReadQuantity quantity = ReadQuantity::kMaster;
  };
  // Calls `sink` for each piece the node has; a sink error ends the stream and is returned.
  Status Read(const ReadArguments& arguments, TimePoint deadline,
              const std::function<Status(const ReadPiece&)>& sink);

  // The session that later calls name.
  void set_session(uint64_t session_id) { session_id_ = session_id; }
  uint64_t session_id() const { return session_id_; }

  // Cancels everything outstanding; later calls but CloseSession end at once with kCancelled.
  void Shutdown();

  class Impl;  // session_rpc_impl.h
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
  uint64_t session_id_ = 0;
};

// Status of all nodes as JSON text, the same as `luwuctl status -o json` prints.
std::string ClusterStatusJson(const std::vector<NodeRpc*>& nodes, const std::vector<Node>& names,
                              TimePoint deadline);

// Runs one call per node at the same time and waits for all: every call has a deadline, so this
// ends. `start(i, done)` makes call i.
template <typename T, typename Start>
std::vector<StatusOr<T>> FanOut(size_t count, const Start& start) {
  struct Gathering {
    Mutex mutex;
    CondVar changed;
    size_t missing LUWU_GUARDED_BY(mutex) = 0;
    std::vector<std::optional<StatusOr<T>>> results LUWU_GUARDED_BY(mutex);
  };
  auto gathering = std::make_shared<Gathering>();
  {
    MutexLock lock(gathering->mutex);
    gathering->missing = count;
    gathering->results.resize(count);
  }
  for (size_t i = 0; i < count; ++i) {
    start(i, [gathering, i](StatusOr<T> result) {
      MutexLock lock(gathering->mutex);
      gathering->results[i] = std::move(result);
      if (--gathering->missing == 0) gathering->changed.NotifyAll();
    });
  }
  std::vector<StatusOr<T>> results;
  MutexLock lock(gathering->mutex);
  while (gathering->missing > 0) gathering->changed.Wait(gathering->mutex);
  for (auto& result : gathering->results) results.push_back(*std::move(result));
  return results;
}

}  // namespace luwu::client
