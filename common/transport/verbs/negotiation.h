// One end's part in setting up a verbs link on an authenticated connection: makes the queue pairs,
// gives and takes the frames of frames.h, and comes to an endpoint. The dialler drives it blocking,
// the acceptor from its progress thread.
//
// One thread at a time.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/verbs/adapter.h"
#include "common/transport/verbs/channel.h"
#include "common/transport/verbs/frames.h"
#include "common/transport/verbs/staging.h"
#include "common/transport/verbs/verbs_endpoint.h"

namespace luwu::transport {

struct NegotiationTerms {
  uint64_t domain = 0;
  ExposedRegions exposed;
  std::vector<RegionDescriptor> expected;
  uint32_t queue_pairs = 1;
  uint64_t staging_bytes = 0;
  FrameSeal seal;
  bool dials = false;  // the dialler's end
};

class VerbsNegotiation {
 public:
  ~VerbsNegotiation();
  static StatusOr<std::unique_ptr<VerbsNegotiation>> Begin(std::shared_ptr<VerbsAdapter> adapter,
                                                           NegotiationTerms terms);

  std::vector<std::byte> OfferFrame() const;
  // The peer's offer, whole in `reader`: connects the queue pairs.
  Status OnOffer(FrameReader* reader);
  // After OnOffer. Makes the keys by which the peer reaches our regions.
  StatusOr<std::vector<std::byte>> KeysFrame();
  Status OnKeys(FrameReader* reader);
  std::unique_ptr<VerbsEndpoint> Finish(LinkParts link, UniqueFd socket);

 private:
  VerbsNegotiation() = default;
  std::string_view role() const { return terms_.dials ? kRoleClient : kRoleDaemon; }
  std::string_view peer_role() const { return terms_.dials ? kRoleDaemon : kRoleClient; }

  std::shared_ptr<VerbsAdapter> adapter_;
  NegotiationTerms terms_;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<VerbsChannel> channel_;
};

// The dialler's half, from the end of the MACs on `fd` to the endpoint.
StatusOr<std::unique_ptr<VerbsNegotiation>> NegotiateAsDialler(
    const std::shared_ptr<VerbsAdapter>& adapter, NegotiationTerms terms, int fd,
    TimePoint deadline);

}  // namespace luwu::transport
