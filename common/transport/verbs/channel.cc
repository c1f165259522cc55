#include "common/transport/verbs/channel.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr uint32_t kInlineBytes = 128;
constexpr uint64_t kMessageBytes = 1 * kMiB;
constexpr int kReadsMax = 16;
constexpr uint32_t kPsnMask = 0xffffff;
// 4.096 us * 2^16 = 0.27 s, six times: a peer that is gone shows within 2 s. (Its process dying
// shows at once, on the connection.)
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetries = 6;     // 7 is "for ever" for some devices
constexpr uint8_t kRnrForEver = 7;  // a peer that takes no notifications holds us back
constexpr uint8_t kRnrTimer = 12;   // 0.64 ms
constexpr uint8_t kHops = 64;

ibv_mtu MtuOf(uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

Status ModifyFailed(const char* step, int error, const std::string& hint) {
  return Error(ErrorCode::kUnavailable, "bringing a queue pair to {} failed: {}{}", step,
               ErrnoText(error), hint);
}

}  // namespace

StatusOr<std::unique_ptr<VerbsChannel>> VerbsChannel::Create(std::shared_ptr<VerbsDomain> domain,
                                                             const ExposedRegions& exposed,
                                                             uint32_t queue_pairs) {
  std::unique_ptr<VerbsChannel> channel(new VerbsChannel);
  channel->domain_ = std::move(domain);
  channel->exposed_ = exposed;
  VerbsDevice& device = channel->domain_->device();
  const ibv_device_attr& attr = device.attr();
  channel->address_ = device.address();
  channel->sends_ = std::min<uint32_t>(kSends, static_cast<uint32_t>(std::max(attr.max_qp_wr, 16)));
  channel->sges_ = std::clamp<uint32_t>(static_cast<uint32_t>(attr.max_sge), 1, kSges);
  channel->message_bytes_ =
      std::clamp<uint64_t>(device.message_bytes_max(), 4 * kKiB, kMessageBytes);
  channel->reads_max_ = static_cast<uint32_t>(std::clamp(attr.max_qp_rd_atom, 1, kReadsMax));
  RETURN_IF_ERROR(channel->MakeQueuePairs(queue_pairs));
  return channel;
}

Status VerbsChannel::MakeQueuePairs(uint32_t count) {
  VerbsDevice& device = domain_->device();
  ASSIGN_OR_RETURN(events_, MakeChannel(api(), device.context()));
  const uint64_t receives = uint64_t{domain_->receives()} * (shares_receives() ? 1 : count);
  const uint64_t entries = uint64_t{sends_} * count + receives;
  ASSIGN_OR_RETURN(cq_, MakeCq(api(), device.context(), events_,
                               static_cast<uint32_t>(std::min<uint64_t>(
                                   entries, static_cast<uint64_t>(device.attr().max_cqe)))));
  unsigned access = 0;
  for (const ExposedRegion& exposed : exposed_) {
    access |= RemoteFlag(exposed.region->access());
  }
  for (uint32_t i = 0; i < count; ++i) {
    QpShape shape = {cq_, domain_->srq(), sends_, domain_->receives(), sges_, kInlineBytes};
    ASSIGN_OR_RETURN(QpHandle qp, MakeQp(api(), domain_->pd(), &shape));
    inline_bytes_ = i == 0 ? shape.inline_bytes : std::min(inline_bytes_, shape.inline_bytes);
    RETURN_IF_ERROR(Init(qp.get(), access));
    queue_pairs_.push_back(std::move(qp));
    first_psn_.push_back(static_cast<uint32_t>(RandomU64()) & kPsnMask);
    for (uint32_t j = 0; !shares_receives() && j < domain_->receives(); ++j) PostReceive(i);
  }
  inline_bytes_ = std::min(inline_bytes_, kInlineBytes);
  return OkStatus();
}

Status VerbsChannel::Init(ibv_qp* qp, unsigned access) const {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = address_.port;
  attr.qp_access_flags = access;
  const int error = api()->ModifyQp(
      qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? OkStatus() : ModifyFailed("INIT", error, "");
}

VerbsOffer VerbsChannel::Offer() const {
  VerbsOffer offer = {};
  offer.ethernet = address_.ethernet ? 1 : 0;
  offer.lid = address_.lid;
  std::copy(std::begin(address_.gid.raw), std::end(address_.gid.raw), offer.gid);
  offer.mtu_bytes = address_.mtu_bytes;
  offer.reads_max = reads_max_;
  offer.queue_pairs = static_cast<uint32_t>(queue_pairs_.size());
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    offer.queue_pair[i] = {queue_pairs_[i]->qp_num, first_psn_[i]};
  }
  return offer;
}

Status VerbsChannel::CheckOffer(const VerbsOffer& peer) const {
  if (peer.queue_pairs != queue_pairs_.size()) {
    return Error(ErrorCode::kInvalidArgument, "the peer offers {} queue pairs, the session has {}",
                 peer.queue_pairs, queue_pairs_.size());
  }
  if ((peer.ethernet != 0) != address_.ethernet) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} speaks {}, the peer's device {}; choose another one with rdma.device",
                 domain_->device().name(), address_.ethernet ? "RoCE" : "InfiniBand",
                 peer.ethernet != 0 ? "RoCE" : "InfiniBand");
  }
  const bool known = std::find(std::begin(kVerbsMtus), std::end(kVerbsMtus), peer.mtu_bytes) !=
                     std::end(kVerbsMtus);
  if (!known || peer.reads_max == 0 || peer.lid > 0xffff) {
    return Error(ErrorCode::kInvalidArgument, "the peer's offer of queue pairs is malformed");
  }
  for (uint32_t i = 0; i < peer.queue_pairs; ++i) {
    if (peer.queue_pair[i].number > kPsnMask || peer.queue_pair[i].first_psn > kPsnMask) {
      return Error(ErrorCode::kInvalidArgument, "the peer's queue pair numbers are malformed");
    }
  }
  return OkStatus();
}

Status VerbsChannel::Connect(const VerbsOffer& peer) {
  RETURN_IF_ERROR(CheckOffer(peer));
  for (uint32_t i = 0; i < queue_pairs_.size(); ++i) {
    RETURN_IF_ERROR(ReadyToReceive(i, peer));
    RETURN_IF_ERROR(ReadyToSend(i, peer));
  }
  return OkStatus();
}

Status VerbsChannel::ReadyToReceive(uint32_t index, const VerbsOffer& peer) const {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = MtuOf(std::min(address_.mtu_bytes, peer.mtu_bytes));
  attr.dest_qp_num = peer.queue_pair[index].number;
  attr.rq_psn = peer.queue_pair[index].first_psn;
  attr.max_dest_rd_atomic = static_cast<uint8_t>(reads_max_);
  attr.min_rnr_timer = kRnrTimer;
  attr.ah_attr.port_num = address_.port;
  attr.ah_attr.dlid = static_cast<uint16_t>(peer.lid);
  ibv_gid gid = {};
  std::copy(std::begin(peer.gid), std::end(peer.gid), gid.raw);
  if (address_.ethernet) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(address_.gid_index);
    attr.ah_attr.grh.hop_limit = kHops;
  }
  const int error =
      api()->ModifyQp(queue_pairs_[index].get(), &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return OkStatus();
  return ModifyFailed(
      "RTR", error,
      fmt::format("; {} does not reach the peer's GID {}: check rdma.gid_index at both ends "
                  "(same address family, same network)",
                  domain_->device().Describe(), GidText(gid)));
}

Status VerbsChannel::ReadyToSend(uint32_t index, const VerbsOffer& peer) const {
  const int ours = std::clamp(domain_->device().attr().max_qp_init_rd_atom, 1, kReadsMax);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kRnrForEver;
  attr.sq_psn = first_psn_[index];
  attr.max_rd_atomic = static_cast<uint8_t>(std::min(static_cast<uint32_t>(ours), peer.reads_max));
  const int error = api()->ModifyQp(queue_pairs_[index].get(), &attr,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? OkStatus() : ModifyFailed("RTS", error, "");
}

void VerbsChannel::PostReceive(uint32_t queue_pair) {
  ibv_recv_wr wr = {};
  wr.wr_id = queue_pair;
  ibv_recv_wr* bad = nullptr;
  // A queue that takes no more has enough; one in error is noticed by its completions.
  if (shares_receives()) {
    domain_->PostShared(1);
  } else {
    (void)api()->PostRecv(queue_pairs_[queue_pair].get(), &wr, &bad);
  }
}

void VerbsChannel::Shut() {
  for (const QpHandle& qp : queue_pairs_) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_ERR;
    (void)api()->ModifyQp(qp.get(), &attr, IBV_QP_STATE);  // it may be there already
  }
  windows_.clear();
  remote_chunks_.clear();
  registrations_.clear();
  queue_pairs_.clear();
  cq_ = nullptr;
  events_ = nullptr;
}

}  // namespace luwu::transport
