#include "common/transport/verbs/domain.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/transport/socket.h"
#include "common/transport/verbs/staging.h"

namespace luwu::transport {
namespace {

// Notifications that may wait for the progress thread; more of them are held back by the NICs.
constexpr uint32_t kSharedReceives = 4096;
constexpr uint32_t kOwnReceives = 1024;
constexpr size_t kIdleStagingMax = 4;

// Writing from afar needs the right to write at all.
unsigned LocalFlags(Access access) {
  return access == Access::kRemoteRead ? 0U : unsigned{IBV_ACCESS_LOCAL_WRITE};
}

}  // namespace

VerbsDomain::VerbsDomain() = default;
VerbsDomain::~VerbsDomain() = default;

Registration::~Registration() {
  chunks_.clear();
  MutexLock lock(domain_->mutex_);
  const auto found = domain_->registered_.find(region_);
  if (found != domain_->registered_.end() && found->second.expired()) {
    domain_->registered_.erase(found);
  }
}

StatusOr<std::shared_ptr<VerbsDomain>> VerbsDomain::Create(std::shared_ptr<VerbsDevice> device,
                                                           const VerbsOptions& options,
                                                           bool shared_receives) {
  struct Made : VerbsDomain {};  // make_shared needs a constructor that it may call
  const std::shared_ptr<VerbsDomain> domain = std::make_shared<Made>();
  domain->device_ = std::move(device);
  VerbsDevice& dev = *domain->device_;
  domain->chunk_bytes_ = std::max<uint64_t>(
      std::min(options.chunk_bytes, dev.attr().max_mr_size) / (4 * kKiB) * (4 * kKiB), 4 * kKiB);
  ASSIGN_OR_RETURN(domain->pd_, AllocPd(dev.api(), dev.context()));
  const auto limit = static_cast<uint32_t>(std::max(dev.attr().max_qp_wr, 16));
  domain->receives_ = std::min(kOwnReceives, limit);
  if (!shared_receives || dev.attr().max_srq == 0) return domain;
  domain->receives_ =
      std::min(kSharedReceives, static_cast<uint32_t>(std::max(dev.attr().max_srq_wr, 16)));
  ASSIGN_OR_RETURN(domain->srq_, MakeSrq(dev.api(), domain->pd_, domain->receives_));
  domain->PostShared(domain->receives_);
  RETURN_IF_ERROR(domain->ArmLowEvent());
  return domain;
}

Status VerbsDomain::ArmLowEvent() {
  ibv_srq_attr attr = {};
  attr.srq_limit = receives_ / 2;
  const int error = device_->api()->ModifySrq(srq_.get(), &attr, IBV_SRQ_LIMIT);
  if (error == 0) return OkStatus();
  return Error(ErrorCode::kUnsupported, "ibv_modify_srq on {} failed: {}", device_->name(),
               ErrnoText(error));
}

void VerbsDomain::PostShared(uint32_t count) {
  ibv_recv_wr wr = {};
  ibv_recv_wr* bad = nullptr;
  for (uint32_t i = 0; i < count; ++i) {
    if (device_->api()->PostSrqRecv(srq_.get(), &wr, &bad) != 0) return;
  }
}

void VerbsDomain::OnLow() {
  PostShared(receives_ / 2);
  const Status armed = ArmLowEvent();
  if (!armed.ok()) LogWarning("srq_not_armed", "why=\"{}\"", MessageOf(armed));
}

StatusOr<std::vector<MrHandle>> VerbsDomain::RegisterChunks(const LocalRegion& region,
                                                            unsigned access) {
  std::vector<MrHandle> chunks;
  for (uint64_t at = 0; at < region.bytes(); at += chunk_bytes_) {
    const uint64_t bytes = std::min(chunk_bytes_, region.bytes() - at);
    auto chunk = RegisterMemory(device_->api(), pd_, region.span().data() + at, bytes, access);
    if (!chunk.ok()) {
      return Annotate(chunk.status(), fmt::format("a region of {} on {}",
                                                  HumanBytes(region.bytes()), device_->name()));
    }
    chunks.push_back(*std::move(chunk));
  }
  return chunks;
}

StatusOr<std::shared_ptr<const Registration>> VerbsDomain::Register(
    const std::shared_ptr<LocalRegion>& region) {
  MutexLock lock(mutex_);
  const auto known = registered_.find(region.get());
  if (known != registered_.end()) {
    if (const auto registration = known->second.lock()) return registration;
  }
  // Held by the lock: two sessions of a job ask for its weights at the same time.
  ASSIGN_OR_RETURN(std::vector<MrHandle> chunks,
                   RegisterChunks(*region, LocalFlags(region->access()) | IBV_ACCESS_MW_BIND));
  const auto made = std::make_shared<Registration>(shared_from_this(), region.get());
  made->chunks_ = std::move(chunks);
  registered_[region.get()] = made;
  region->Keep(made);
  return made;
}

StatusOr<std::vector<MrHandle>> VerbsDomain::RegisterRemote(const LocalRegion& region) {
  return RegisterChunks(region, LocalFlags(region.access()) | RemoteFlag(region.access()));
}

StatusOr<MrHandle> VerbsDomain::RegisterLocal(ByteSpan memory) {
  return RegisterMemory(device_->api(), pd_, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
}

StatusOr<MrHandle> VerbsDomain::Pin(ByteSpan memory) {
  ASSIGN_OR_RETURN(MrHandle mr, RegisterLocal(memory));
  MutexLock lock(mutex_);
  const auto more = std::make_shared<PinnedRanges>();
  for (const PinnedRange& range : *pinned_) {
    if (!range.mr.expired()) more->push_back(range);
  }
  more->push_back({memory.data(), memory.data() + memory.size(), mr->lkey, mr});
  pinned_ = more;
  return mr;
}

std::shared_ptr<const PinnedRanges> VerbsDomain::pinned() const {
  MutexLock lock(mutex_);
  return pinned_;
}

StatusOr<std::unique_ptr<StagingPool>> VerbsDomain::TakeStaging(uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    if (!idle_staging_.empty()) {  // all of one size: that of a dialler, or of an acceptor
      std::unique_ptr<StagingPool> staging = std::move(idle_staging_.back());
      idle_staging_.pop_back();
      return staging;
    }
  }
  return StagingPool::Create(this, bytes);
}

void VerbsDomain::GiveStaging(std::unique_ptr<StagingPool> staging) {
  if (staging == nullptr) return;
  staging->Reset();
  MutexLock lock(mutex_);
  if (idle_staging_.size() < kIdleStagingMax) idle_staging_.push_back(std::move(staging));
}

}  // namespace luwu::transport
