// The queue pairs of one link with their completion queue, the keys by which the peer reaches our
// regions, and the keys it gave us. Made in the order of the handshake: Create, Connect with the
// peer's offer, BindKeys, TakeKeys.
//
// Keys live as long as the link. Where the device has windows of type 2, each is bound to one queue
// pair, so that nobody else can use it even if it is guessed or stolen; elsewhere the regions are
// registered anew for each link.
//
// One thread at a time until the link has it, then as verbs_endpoint.h says.
#pragma once

#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/region.h"
#include "common/transport/verbs/domain.h"
#include "common/transport/verbs/frames.h"

namespace luwu::transport {

// Where a range of the peer's lies: the start, its key, and how many bytes the key covers from
// there.
struct RemotePlace {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint64_t bytes = 0;
};

class VerbsChannel {
 public:
  static constexpr uint32_t kSends = 256;  // work requests outstanding on one queue pair
  static constexpr uint32_t kSges = 16;

  static StatusOr<std::unique_ptr<VerbsChannel>> Create(std::shared_ptr<VerbsDomain> domain,
                                                        const ExposedRegions& exposed,
                                                        uint32_t queue_pairs);
  ~VerbsChannel() { Shut(); }

  VerbsOffer Offer() const;
  // kInvalidArgument for an offer that cannot be; the error names the setting in question.
  Status Connect(const VerbsOffer& peer);
  // Makes the keys of the exposed regions. Waits for the device, microseconds.
  StatusOr<std::vector<VerbsKey>> BindKeys();
  // Fails unless the keys cover exactly what was agreed.
  Status TakeKeys(ConstByteSpan content, const std::vector<RegionDescriptor>& expected);

  // Revokes all keys and ends the queue pairs: when it returns, neither end's NIC touches memory of
  // ours for this link any more. Idempotent.
  void Shut();

  VerbsDomain& domain() const { return *domain_; }
  VerbsApi* api() const { return domain_->device().api(); }
  ibv_cq* cq() const { return cq_.get(); }
  ibv_comp_channel* events() const { return events_.get(); }
  const std::vector<QpHandle>& queue_pairs() const { return queue_pairs_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t sends() const { return sends_; }
  uint32_t sges() const { return sges_; }
  uint64_t message_bytes() const { return message_bytes_; }
  bool shares_receives() const { return domain_->srq() != nullptr; }
  // A receive was used up on this queue pair: posts another.
  void PostReceive(uint32_t queue_pair);
  // `remote` lies within an agreed region.
  RemotePlace Place(const RemoteSpan& remote, uint64_t progressed, uint32_t queue_pair) const;

 private:
  struct PeerRegion {
    RegionDescriptor region;
    uint64_t chunk_bytes = 0;
    std::vector<RemotePlace> keys;  // [chunk * queue pairs + queue pair]
  };

  VerbsChannel() = default;
  Status MakeQueuePairs(uint32_t count);
  Status Init(ibv_qp* qp, unsigned access) const;
  Status ReadyToReceive(uint32_t index, const VerbsOffer& peer) const;
  Status ReadyToSend(uint32_t index, const VerbsOffer& peer) const;
  Status CheckOffer(const VerbsOffer& peer) const;
  Status BindRegion(const ExposedRegion& exposed, std::vector<VerbsKey>* keys);
  Status BindWindow(const MrHandle& chunk, Access access, VerbsKey* key);
  Status RegisterRegion(const ExposedRegion& exposed, std::vector<VerbsKey>* keys);
  Status AwaitBind();
  Status AddPeerKey(const VerbsKey& key);

  std::shared_ptr<VerbsDomain> domain_;
  ExposedRegions exposed_;
  PortAddress address_;
  ChannelHandle events_;
  CqHandle cq_;
  std::vector<QpHandle> queue_pairs_;
  std::vector<uint32_t> first_psn_;
  uint32_t inline_bytes_ = 0;
  uint32_t sends_ = 0;
  uint32_t sges_ = 1;
  uint64_t message_bytes_ = 0;
  uint32_t reads_max_ = 1;
  // What gives the peer access, in the order in which it must not go: windows first.
  std::vector<std::shared_ptr<const Registration>> registrations_;
  std::vector<MrHandle> remote_chunks_;
  std::vector<MwHandle> windows_;
  std::vector<PeerRegion> peer_regions_;
};

}  // namespace luwu::transport
