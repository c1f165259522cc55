#include "common/doctor/reach.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "common/transport/socket.h"

namespace luwu::doctor {
namespace {

constexpr uint64_t kPatientMs = 60'000;

TEST(Reach, NamesEachAddressThatTakesNoConnection) {
  const auto listener = transport::ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const std::string good = fmt::format("127.0.0.1:{}", listener->port);
  // A port below 1024 that no service has.
  const std::vector<Status> results =
      Reach({"127.0.0.1:9", good, "nonsense", fmt::format("localhost:{}", listener->port)},
            DeadlineAfter(kPatientMs));
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(CodeOf(results[0]), ErrorCode::kUnavailable);
  EXPECT_EQ(MessageOf(results[0]), "127.0.0.1:9: Connection refused");
  EXPECT_TRUE(results[1].ok()) << ToString(results[1]);
  EXPECT_EQ(CodeOf(results[2]), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(results[3].ok()) << ToString(results[3]);  // one of its addresses is enough
}

// A listener whose queue is full drops what more comes, as a firewall does.
TEST(Reach, AnAddressThatDoesNotAnswerIsGivenUpAtTheDeadline) {
  const auto listener = transport::ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(::listen(listener->fd.get(), 0), 0);
  const std::string address = fmt::format("127.0.0.1:{}", listener->port);
  const auto kept = transport::ConnectTcp(address, DeadlineAfter(kPatientMs));
  ASSERT_TRUE(kept.ok());
  const std::vector<Status> results = Reach({address}, DeadlineAfter(50));
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(CodeOf(results[0]), ErrorCode::kDeadline) << ToString(results[0]);
}

TEST(Reach, NothingToTry) { EXPECT_TRUE(Reach({}, DeadlineAfter(kPatientMs)).empty()); }

}  // namespace
}  // namespace luwu::doctor
