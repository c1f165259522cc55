// A protection domain with what is registered in it: one for each job at the daemon, one for each
// session at the client. Keys and windows of one domain are no good in another; that the device
// checks.
//
// A region is registered once and stays so as long as its memory lives: the registration is hung
// onto the region (LocalRegion::Keep). Registering pins and may take seconds for big regions, so
// the daemon does it on a control thread, ahead of the link (Acceptor::Prepare). Any thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/region.h"
#include "common/transport/verbs/device.h"

namespace luwu::transport {

class StagingPool;
class VerbsDomain;

// What a peer may do, as a flag of verbs.
inline unsigned RemoteFlag(Access access) {
  if (access == Access::kRemoteRead) return IBV_ACCESS_REMOTE_READ;
  return IBV_ACCESS_REMOTE_WRITE;
}

// A region in chunks, of which all but the last have `chunk_bytes`.
class Registration {
 public:
  Registration(std::shared_ptr<VerbsDomain> domain, const LocalRegion* region)
      : domain_(std::move(domain)), region_(region) {}
  ~Registration();

  const std::vector<MrHandle>& chunks() const { return chunks_; }

 private:
  friend class VerbsDomain;
  const std::shared_ptr<VerbsDomain> domain_;
  const LocalRegion* const region_;  // only a key
  std::vector<MrHandle> chunks_;
};

// Memory of ours that requests may name without a copy.
struct PinnedRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  uint32_t lkey = 0;
  std::weak_ptr<ibv_mr> mr;
};
using PinnedRanges = std::vector<PinnedRange>;

class VerbsDomain : public std::enable_shared_from_this<VerbsDomain> {
 public:
  ~VerbsDomain();
  // With `shared_receives` notifications of all links are received through one queue.
  static StatusOr<std::shared_ptr<VerbsDomain>> Create(std::shared_ptr<VerbsDevice> device,
                                                       const VerbsOptions& options,
                                                       bool shared_receives);

  // For windows to be bound to; grants nobody anything by itself.
  StatusOr<std::shared_ptr<const Registration>> Register(const std::shared_ptr<LocalRegion>& region)
      LUWU_EXCLUDES(mutex_);
  // A registration of its own, with remote access: for devices without windows. Drop it to revoke.
  StatusOr<std::vector<MrHandle>> RegisterRemote(const LocalRegion& region);
  // Memory that only our own requests read or write.
  StatusOr<MrHandle> RegisterLocal(ByteSpan memory);
  // The same, and links of this domain find it: their requests use it in place. No request may be
  // outstanding in it when the handle is dropped.
  StatusOr<MrHandle> Pin(ByteSpan memory) LUWU_EXCLUDES(mutex_);
  std::shared_ptr<const PinnedRanges> pinned() const LUWU_EXCLUDES(mutex_);

  // Staging memory for one link; kept for the next one, because touching and registering it anew
  // takes longer than all the rest of making a link.
  StatusOr<std::unique_ptr<StagingPool>> TakeStaging(uint64_t bytes) LUWU_EXCLUDES(mutex_);
  // Only when no device touches it any more.
  void GiveStaging(std::unique_ptr<StagingPool> staging) LUWU_EXCLUDES(mutex_);

  VerbsDevice& device() const { return *device_; }
  const PdHandle& pd() const { return pd_; }
  const SrqHandle& srq() const { return srq_; }
  uint32_t receives() const { return receives_; }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // Posts `count` receives of nothing, which take notifications. A full queue is no error.
  void PostShared(uint32_t count);
  // The queue ran low, whatever the reason: receives that went with a queue pair never return.
  void OnLow();

 private:
  friend class Registration;
  VerbsDomain();
  StatusOr<std::vector<MrHandle>> RegisterChunks(const LocalRegion& region, unsigned access);
  Status ArmLowEvent();

  std::shared_ptr<VerbsDevice> device_;
  PdHandle pd_;
  SrqHandle srq_;  // may be null
  uint32_t receives_ = 0;
  uint64_t chunk_bytes_ = 0;

  mutable Mutex mutex_;
  std::shared_ptr<const PinnedRanges> pinned_ LUWU_GUARDED_BY(mutex_) =
      std::make_shared<PinnedRanges>();
  std::vector<std::unique_ptr<StagingPool>> idle_staging_ LUWU_GUARDED_BY(mutex_);
  std::map<const LocalRegion*, std::weak_ptr<Registration>> registered_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::transport
