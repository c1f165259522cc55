// The frames by which the ends of a verbs link tell each other queue pairs and keys
// (verbs/frames.h), from a peer that knows the session's secret: the whole exchange against a
// fabric in memory.
//
// Input: the size of the pieces in which bytes arrive; which frames get a good MAC (bit 0: the
// offer, bit 1: the keys); how many bytes of the rest are the offer. A frame without a good MAC is
// the bytes themselves, head included.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "common/base/check.h"
#include "common/transport/verbs/negotiation.h"
#include "tests/fakes/fake_verbs.h"

namespace luwu::transport {
namespace {

constexpr size_t kInputMax = 64 * 1024;
constexpr uint32_t kQueuePairs = 2;

struct Fabric {
  FakeVerbs verbs;
  std::shared_ptr<EventLoop> loop = *EventLoop::Start("fuzz");
  std::shared_ptr<VerbsAdapter> adapter =
      std::make_shared<VerbsAdapter>(loop, VerbsOptions{.use = VerbsUse::kOn, .api = &verbs}, true);
  // Lives as long as we, so that it is not made anew for each input.
  std::shared_ptr<VerbsDomain> domain = *adapter->Domain(1);
  std::shared_ptr<LocalRegion> weights = *LocalRegion::Create("weights", 8192, Access::kRemoteRead);

  ~Fabric() {
    domain.reset();
    adapter->Close();
    loop->Stop();
  }
};

// What a peer can make of `content`, arrived in pieces. False when the reader refuses it or wants
// more.
bool Arrive(FrameReader* reader, ConstByteSpan bytes, size_t piece) {
  while (!bytes.empty() && !reader->whole()) {
    const ByteSpan room = reader->Room();
    LUWU_CHECK(!room.empty(), "a frame that is not whole has room");
    const size_t take = std::min({piece, room.size(), bytes.size()});
    std::copy_n(bytes.begin(), take, room.begin());
    bytes = bytes.subspan(take);
    if (!reader->Advance(take).ok()) return false;
  }
  return reader->whole();
}

std::vector<std::byte> Frame(const FrameSeal& seal, bool sealed, VerbsFrameType type,
                             ConstByteSpan content) {
  if (sealed) return SealFrame(seal, kRoleClient, type, content);
  return {content.begin(), content.end()};
}

// The daemon's half, as far as the peer's bytes carry it.
void Negotiate(Fabric& fabric, const uint8_t* data, size_t size) {
  const size_t piece = data[0] == 0 ? kInputMax : data[0];
  const uint8_t sealed = data[1];
  const ConstByteSpan rest = std::as_bytes(std::span(data + 3, size - 3));
  const ConstByteSpan offer = rest.first(std::min<size_t>(data[2], rest.size()));
  const ConstByteSpan keys = rest.subspan(offer.size());
  const FrameSeal seal = {};
  const std::vector<RegionDescriptor> expected = {{3, 4096, Access::kRemoteWrite},
                                                  {4, 100, Access::kRemoteRead}};
  auto negotiation = VerbsNegotiation::Begin(fabric.adapter, {.domain = 1,
                                                              .exposed = {{1, fabric.weights}},
                                                              .expected = expected,
                                                              .queue_pairs = kQueuePairs,
                                                              .staging_bytes = 4096,
                                                              .seal = seal,
                                                              .dials = false});
  LUWU_CHECK(negotiation.ok(), "our own part is in order");
  FrameReader reader;
  if (!Arrive(&reader, Frame(seal, (sealed & 1) != 0, VerbsFrameType::kOffer, offer), piece))
    return;
  const Status connected = (*negotiation)->OnOffer(&reader);
  LUWU_CHECK(!connected.ok() || (sealed & 1) != 0, "no offer without its MAC");
  if (!connected.ok()) return;
  (void)(*negotiation)->KeysFrame();
  if (!Arrive(&reader, Frame(seal, (sealed & 2) != 0, VerbsFrameType::kKeys, keys), piece)) return;
  const Status taken = (*negotiation)->OnKeys(&reader);
  if (!taken.ok()) return;
  LUWU_CHECK((sealed & 2) != 0, "no keys without their MAC");
  LUWU_CHECK(keys.size() % sizeof(VerbsKey) == 0 && keys.size() >= 4 * sizeof(VerbsKey),
             "each of two regions is reached through each of two queue pairs");
  uint64_t covered = 0;
  for (size_t at = 0; at < keys.size(); at += sizeof(VerbsKey)) {
    VerbsKey key;
    std::copy_n(keys.begin() + static_cast<ptrdiff_t>(at), sizeof key,
                std::as_writable_bytes(std::span(&key, 1)).begin());
    LUWU_CHECK(key.region == 3 || key.region == 4, "agreed regions only");
    covered += key.bytes;
  }
  LUWU_CHECK(covered == kQueuePairs * (4096 + 100), "each byte once for each queue pair");
}

int TryExchange(const uint8_t* data, size_t size) {
  if (size < 3 || size > kInputMax) return 0;
  static Fabric fabric;
  const FakeVerbs::Counts before = fabric.verbs.open();
  Negotiate(fabric, data, size);
  const FakeVerbs::Counts after = fabric.verbs.open();
  LUWU_CHECK(after.qps == before.qps && after.mws == before.mws && after.cqs == before.cqs,
             "nothing of the link is left");
  return 0;
}

}  // namespace
}  // namespace luwu::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return luwu::transport::TryExchange(data, size);
}
