#include "tests/unit/transport/verbs_raw_client.h"

#include <sched.h>

#include <cstring>

#include "common/transport/handshake.h"
#include "common/transport/socket.h"

namespace luwu::transport {

VerbsRawClient::VerbsRawClient(Daemon* daemon, const VerbsOptions& verbs, uint64_t session_id)
    : daemon_(daemon), session_id_(session_id) {
  const auto device = VerbsDevice::Open(verbs);
  EXPECT_TRUE(device.ok()) << ToString(device.status());
  domain_ = *VerbsDomain::Create(*device, verbs, false);
  mr_ = *domain_->RegisterLocal(memory_);
  // Regions of its own: what a region is registered with stays with it.
  const auto board = *LocalRegion::Create("board", daemon->board->bytes(), Access::kRemoteWrite);
  const auto outbox = *LocalRegion::Create("outbox", daemon->outbox->bytes(), Access::kRemoteRead);
  channel_ = *VerbsChannel::Create(domain_, {{kBoard, board}, {kOutbox, outbox}}, 1);
  socket_ = *ConnectTcp(fmt::format("127.0.0.1:{}", daemon->acceptor->tcp_port()), Patience());
}

VerbsRawClient::~VerbsRawClient() { Vanish(); }

void VerbsRawClient::Vanish() {
  channel_ = nullptr;
  socket_.Reset();
}

void VerbsRawClient::Send(const std::vector<std::byte>& frame) {
  EXPECT_TRUE(SendExact(socket_.get(), frame, Patience()).ok());
}

std::vector<std::byte> VerbsRawClient::Receive(VerbsFrameType type) {
  FrameReader reader;
  while (!reader.whole()) {
    const ByteSpan room = reader.Room();
    const Status received = ReceiveExact(socket_.get(), room, Patience());
    EXPECT_TRUE(received.ok()) << ToString(received);
    if (!received.ok() || !reader.Advance(room.size()).ok()) return {};
  }
  auto content = reader.Take(seal_, kRoleDaemon, type);
  EXPECT_TRUE(content.ok()) << ToString(content.status());
  return content.ok() ? *std::move(content) : std::vector<std::byte>();
}

void VerbsRawClient::Answer() {
  Nonce nonce;
  ASSERT_TRUE(ReceiveExact(socket_.get(), WritableBytesOf(nonce), Patience()).ok());
  transport::Answer answer = {};
  answer.magic = kAnswerMagic;
  answer.kind = static_cast<uint32_t>(Kind::kVerbs);
  answer.session_id = session_id_;
  answer.link_id = RandomU64();
  answer.connections = 1;
  answer.nonce = RandomNonce();
  answer.mac = HandshakeMac(daemon_->secret, kRoleClient, nonce, answer);
  seal_ = {daemon_->secret, nonce, answer.nonce};
  ASSERT_TRUE(SendExact(socket_.get(), BytesOf(answer), Patience()).ok());
  Mac mac;
  ASSERT_TRUE(ReceiveExact(socket_.get(), WritableBytesOf(mac), Patience()).ok());
}

void VerbsRawClient::Offer() {
  const VerbsOffer ours = channel_->Offer();
  Send(SealFrame(seal_, kRoleClient, VerbsFrameType::kOffer, BytesOf(ours)));
  const std::vector<std::byte> content = Receive(VerbsFrameType::kOffer);
  VerbsOffer theirs;
  ASSERT_EQ(content.size(), sizeof theirs);
  std::memcpy(&theirs, content.data(), sizeof theirs);
  const Status connected = channel_->Connect(theirs);
  ASSERT_TRUE(connected.ok()) << ToString(connected);
}

void VerbsRawClient::Keys() {
  const auto ours = channel_->BindKeys();
  ASSERT_TRUE(ours.ok()) << ToString(ours.status());
  Send(SealFrame(seal_, kRoleClient, VerbsFrameType::kKeys, std::as_bytes(std::span(*ours))));
  const std::vector<std::byte> content = Receive(VerbsFrameType::kKeys);
  keys_.resize(content.size() / sizeof(VerbsKey));
  ASSERT_FALSE(keys_.empty());
  std::memcpy(keys_.data(), content.data(), content.size());
}

VerbsKey VerbsRawClient::KeyOf(RegionId region) const {
  for (const VerbsKey& key : keys_) {
    if (key.region == region && key.chunk == 0) return key;
  }
  ADD_FAILURE() << "no key of region " << region;
  return {};
}

ibv_wc_status VerbsRawClient::Access(ibv_wr_opcode opcode, const VerbsKey& key, uint64_t bytes) {
  ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()), static_cast<uint32_t>(bytes),
                 mr_->lkey};
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = key.address;
  wr.wr.rdma.rkey = key.rkey;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(channel_->api()->PostSend(channel_->queue_pairs()[0].get(), &wr, &bad), 0);
  const TimePoint deadline = Patience();
  while (std::chrono::steady_clock::now() < deadline) {
    ibv_wc wc = {};
    if (channel_->api()->PollCq(channel_->cq(), {&wc, 1}) == 1) return wc.status;
    ::sched_yield();
  }
  ADD_FAILURE() << "no completion";
  return IBV_WC_GENERAL_ERR;
}

}  // namespace luwu::transport
