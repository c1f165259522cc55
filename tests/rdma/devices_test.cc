// Finding real devices, in the guest of scripts/rdma-vm: two Soft-RoCE ones for Roce.*, soft-iWARP
// for Iwarp.*.
#include <gtest/gtest.h>

#include "common/transport/connect.h"
#include "common/transport/verbs/device.h"

namespace luwu::transport {
namespace {

class NoSessions final : public SessionAuthority {
 public:
  StatusOr<SessionTerms> Lookup(uint64_t session_id) override {
    return Error(ErrorCode::kNotFound, "no session {}", session_id);
  }
  LinkEvents* OnLink(uint64_t, std::unique_ptr<Endpoint>) override { return nullptr; }
};

TEST(Roce, TheIpv4AddressIsChosenBeforeTheLinkLocalOne) {
  const auto device = VerbsDevice::Open({});
  ASSERT_TRUE(device.ok()) << ToString(device.status());
  EXPECT_TRUE((*device)->address().ethernet);
  EXPECT_EQ(GidText((*device)->address().gid),
            (*device)->name() == "rxe0" ? "::ffff:10.77.0.1" : "::ffff:10.77.0.2");
  EXPECT_TRUE((*device)->has_windows());
}

TEST(Roce, ADeviceIsChosenByName) {
  VerbsOptions options;
  options.device = "rxe1";
  options.mtu = 1024;
  const auto device = VerbsDevice::Open(options);
  ASSERT_TRUE(device.ok()) << ToString(device.status());
  EXPECT_EQ(GidText((*device)->address().gid), "::ffff:10.77.0.2");
  EXPECT_EQ((*device)->address().mtu_bytes, 1024U);
  options.device = "mlx5_0";
  EXPECT_NE(MessageOf(VerbsDevice::Open(options).status()).find("only: rxe0, rxe1"),
            std::string::npos);
}

TEST(Roce, AWrongGidIndexIsNamedWithThoseThatExist) {
  VerbsOptions options;
  options.device = "rxe0";
  options.gid_index = 77;
  const std::string said = MessageOf(VerbsDevice::Open(options).status());
  EXPECT_NE(said.find("rdma.gid_index is 77"), std::string::npos) << said;
  EXPECT_NE(said.find("::ffff:10.77.0.1"), std::string::npos) << said;
}

TEST(Iwarp, IsRefusedAtStartWithAReason) {
  const std::string said = MessageOf(VerbsDevice::Open({}).status());
  EXPECT_NE(said.find("siw0 is an iWARP device"), std::string::npos) << said;
  NoSessions authority;
  AcceptorOptions options;
  options.tcp_address = "127.0.0.1:0";
  options.verbs.use = VerbsUse::kOn;
  const auto strict = MakeAcceptor(options, &authority);
  EXPECT_EQ(CodeOf(strict.status()), ErrorCode::kUnsupported) << ToString(strict.status());
  options.verbs.use = VerbsUse::kAuto;
  EXPECT_TRUE(MakeAcceptor(options, &authority).ok());
}

}  // namespace
}  // namespace luwu::transport
