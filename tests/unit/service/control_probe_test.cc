// The probe against a port that greets, as gRPC does, and one that is only listened on.
#include "server/service/control_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

namespace luwu {
namespace {

class ControlProbeTest : public testing::Test {
 protected:
  ControlProbeTest() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), generic, length), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener_.get(), generic, &length), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  void Greet() {
    const UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
    EXPECT_EQ(::send(peer.get(), "hi", 2, 0), 2);
    greeted_ = true;
  }

  UniqueFd listener_;
  std::string address_;
  bool greeted_ = false;
};

TEST_F(ControlProbeTest, APortThatNobodyAcceptsOnIsDeadAfterThreeBeats) {
  ControlProbe probe(address_);
  for (uint32_t beat = 0; beat < ControlProbe::kSilentBeatsMax; ++beat)
    EXPECT_FALSE(probe.IsDead());
  EXPECT_TRUE(probe.IsDead());
  EXPECT_FALSE(probe.IsDead()) << "it begins anew";
}

TEST_F(ControlProbeTest, APortThatGreetsIsAlive) {
  ControlProbe probe(address_);
  for (int beat = 0; beat < 10; ++beat) {
    EXPECT_FALSE(probe.IsDead());
    Greet();
  }
}

TEST_F(ControlProbeTest, APortThatWaitsForTheClientIsSpokenTo) {
  ControlProbe probe(address_, "hello");
  for (int beat = 0; beat < 10; ++beat) {
    EXPECT_FALSE(probe.IsDead());
    const UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
    char heard[5] = {};
    EXPECT_EQ(::recv(peer.get(), heard, sizeof(heard), MSG_WAITALL), 5);
    EXPECT_EQ(std::string(heard, sizeof(heard)), "hello");
    EXPECT_EQ(::send(peer.get(), "hi", 2, 0), 2);
  }
}

TEST_F(ControlProbeTest, WhoDoesNotAnswerAHelloIsDeadToo) {
  ControlProbe probe(address_, "hello");
  for (uint32_t beat = 0; beat < ControlProbe::kSilentBeatsMax; ++beat)
    EXPECT_FALSE(probe.IsDead());
  EXPECT_TRUE(probe.IsDead());
}

}  // namespace
}  // namespace luwu
