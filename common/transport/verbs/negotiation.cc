#include "common/transport/verbs/negotiation.h"

#include <cstring>
#include <utility>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

Status ReceiveFrame(int fd, TimePoint deadline, FrameReader* reader) {
  while (!reader->whole()) {
    const ByteSpan room = reader->Room();
    RETURN_IF_ERROR(ReceiveExact(fd, room, deadline));
    RETURN_IF_ERROR(reader->Advance(room.size()));
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<VerbsNegotiation>> VerbsNegotiation::Begin(
    std::shared_ptr<VerbsAdapter> adapter, NegotiationTerms terms) {
  if (terms.queue_pairs == 0 || terms.queue_pairs > kQueuePairsMax) {
    return Error(ErrorCode::kInvalidArgument, "a verbs link has 1 to {} connections, not {}",
                 kQueuePairsMax, terms.queue_pairs);
  }
  std::unique_ptr<VerbsNegotiation> negotiation(new VerbsNegotiation);
  negotiation->adapter_ = std::move(adapter);
  negotiation->terms_ = std::move(terms);
  const NegotiationTerms& agreed = negotiation->terms_;
  ASSIGN_OR_RETURN(const std::shared_ptr<VerbsDomain> domain,
                   negotiation->adapter_->Domain(agreed.domain));
  RETURN_IF_ERROR(domain->device().Refresh());
  ASSIGN_OR_RETURN(negotiation->channel_,
                   VerbsChannel::Create(domain, agreed.exposed, agreed.queue_pairs));
  ASSIGN_OR_RETURN(negotiation->staging_, domain->TakeStaging(agreed.staging_bytes));
  return negotiation;
}

VerbsNegotiation::~VerbsNegotiation() {
  if (channel_ == nullptr) return;
  channel_->Shut();
  channel_->domain().GiveStaging(std::move(staging_));
}

std::vector<std::byte> VerbsNegotiation::OfferFrame() const {
  const VerbsOffer offer = channel_->Offer();
  return SealFrame(terms_.seal, role(), VerbsFrameType::kOffer, BytesOf(offer));
}

Status VerbsNegotiation::OnOffer(FrameReader* reader) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> content,
                   reader->Take(terms_.seal, peer_role(), VerbsFrameType::kOffer));
  VerbsOffer offer;
  if (content.size() != sizeof offer) {
    return Error(ErrorCode::kInvalidArgument, "the peer's offer of queue pairs is malformed");
  }
  std::memcpy(&offer, content.data(), sizeof offer);
  return channel_->Connect(offer);
}

StatusOr<std::vector<std::byte>> VerbsNegotiation::KeysFrame() {
  ASSIGN_OR_RETURN(const std::vector<VerbsKey> keys, channel_->BindKeys());
  return SealFrame(terms_.seal, role(), VerbsFrameType::kKeys, std::as_bytes(std::span(keys)));
}

Status VerbsNegotiation::OnKeys(FrameReader* reader) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> content,
                   reader->Take(terms_.seal, peer_role(), VerbsFrameType::kKeys));
  return channel_->TakeKeys(content, terms_.expected);
}

std::unique_ptr<VerbsEndpoint> VerbsNegotiation::Finish(LinkParts link, UniqueFd socket) {
  return std::make_unique<VerbsEndpoint>(VerbsLinkParts{
      std::move(link), std::move(socket), std::move(channel_), std::move(staging_), adapter_});
}

StatusOr<std::unique_ptr<VerbsNegotiation>> NegotiateAsDialler(
    const std::shared_ptr<VerbsAdapter>& adapter, NegotiationTerms terms, int fd,
    TimePoint deadline) {
  const FrameSeal seal = terms.seal;
  auto begun = VerbsNegotiation::Begin(adapter, std::move(terms));
  Status status = begun.status();
  if (status.ok()) {
    VerbsNegotiation& negotiation = **begun;
    FrameReader reader;
    RETURN_IF_ERROR(SendExact(fd, negotiation.OfferFrame(), deadline));
    RETURN_IF_ERROR(ReceiveFrame(fd, deadline, &reader));
    status = negotiation.OnOffer(&reader);
    if (status.ok()) {
      auto keys = negotiation.KeysFrame();
      status = keys.status();
      if (status.ok()) RETURN_IF_ERROR(SendExact(fd, *keys, deadline));
    }
    if (status.ok()) {
      RETURN_IF_ERROR(ReceiveFrame(fd, deadline, &reader));
      status = negotiation.OnKeys(&reader);
    }
  }
  if (status.ok()) return begun;
  (void)SendExact(fd, SealRefusal(seal, kRoleClient, status), deadline);  // for its log
  return status;
}

}  // namespace luwu::transport
