// The transport for RDMA NICs: reads and writes are RDMA READs and WRITEs of a reliable queue pair,
// a notification is the immediate of a WRITE. The peer's processor takes no part in the former.
// Requests of lane i travel on queue pair i modulo their number.
//
// The connection on which the link was negotiated stays open: its end is the end of the link, so a
// peer's death shows at once; the last words of a peer that ends it travel there too.
//
// Any thread posts, under one mutex. Completions are taken on the progress thread, woken by the
// completion channel; in busy mode it polls instead while work is outstanding, yielding each time.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/transport/verbs/adapter.h"
#include "common/transport/verbs/work_queue.h"

namespace luwu::transport {

struct VerbsLinkParts {
  LinkParts link;
  UniqueFd socket;
  std::unique_ptr<VerbsChannel> channel;  // connected, with keys on both sides
  std::unique_ptr<StagingPool> staging;
  std::shared_ptr<VerbsAdapter> adapter;
};

class VerbsEndpoint final : public Link {
 public:
  explicit VerbsEndpoint(VerbsLinkParts parts);
  ~VerbsEndpoint() override;

  void Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
             Request* request) override;
  void WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                       uint32_t immediate, Request* request) override;
  void Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) override;
  // The peer's memory cannot be mapped.
  std::optional<ByteSpan> MapWritable(RegionId) override { return std::nullopt; }
  std::optional<ConstByteSpan> MapReadable(RegionId) override { return std::nullopt; }
  void Notify(uint32_t lane, uint32_t immediate, Request* request) override;

  // ---- progress thread -------------------------------------------------------------------------
  bool Owns(const ibv_qp* qp) const;
  // An event of the device concerns this link: it ends.
  void OnDeviceEvent(const Status& why, bool protection_fault);

 protected:
  Status Attach() override;
  void Detach(const Status& result, RequestList* outstanding) override;
  bool OnSocket(uint32_t events) override;

 private:
  // The completion channel, as the loop sees it.
  class Watcher final : public Pollable {
   public:
    explicit Watcher(VerbsEndpoint* endpoint) : endpoint_(endpoint) {}
    bool OnReady(uint32_t events) override { return endpoint_->OnCompletions(events); }
    void OnDeadline() override { endpoint_->CheckQueuePairs(); }

   private:
    VerbsEndpoint* const endpoint_;
  };

  void Post(const VerbsRequest& op, uint32_t lane, Request* request);
  void PostWrite(const VerbsRequest& op, uint32_t lane, Request* request);
  bool OnCompletions(uint32_t events);
  Status Rearm();
  // Takes up to one batch; *taken says how many there were.
  Status TakeBatch(int* taken);
  Status TakeReceive(const ibv_wc& wc);
  void FinishSettled();
  bool KeepPolling(int taken);
  void CheckQueuePairs();
  void FailWith(const Status& why, bool protection_fault);

  const std::shared_ptr<VerbsAdapter> adapter_;
  const bool busy_poll_;
  Watcher watcher_;

  Mutex mutex_;
  Status down_ LUWU_GUARDED_BY(mutex_);  // not OK: detached
  std::unique_ptr<StagingPool> staging_ LUWU_GUARDED_BY(mutex_);
  std::unique_ptr<VerbsChannel> channel_;  // posted to under mutex_; shut on the progress thread
  std::vector<std::unique_ptr<WorkQueue>> queues_ LUWU_GUARDED_BY(mutex_);
  uint32_t next_queue_ LUWU_GUARDED_BY(mutex_) = 0;

  // Progress thread.
  UniqueFd socket_;
  std::array<ibv_wc, 32> batch_ = {};
  std::vector<WorkQueue::Settled> settled_;
  TimePoint busy_until_;
  std::string last_words_;
  bool protection_fault_ = false;
};

}  // namespace luwu::transport
