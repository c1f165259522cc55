#include "server/session/board_writer.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/fakes/fake_board.h"

namespace luwu {
namespace {

using fakes::FakeBoard;
using fakes::FakeEndpoint;

constexpr uint32_t kSlots = 3;
constexpr uint64_t kShards = 5;

class Writer : public testing::TestWithParam<bool> {
 protected:
  Writer() : board_(kSlots, kShards), writer_({42, kSlots, kShards}) {}
  ~Writer() override { writer_.Detach(); }

  std::shared_ptr<FakeEndpoint> Link() {
    auto endpoint = std::make_shared<FakeEndpoint>(&board_, GetParam());
    writer_.Attach(endpoint);
    return endpoint;
  }

  FakeBoard board_;
  BoardWriter writer_;
};
INSTANTIATE_TEST_SUITE_P(Board, Writer, testing::Bool(),
                         [](const auto& info) { return info.param ? "mapped" : "written"; });

TEST_P(Writer, ANewLinkCarriesEverything) {
  writer_.SetReleased(1, 7);
  writer_.SetPublished({1, 2, 3, 4, 1ull << 40});
  writer_.SetCurrentStep(1ull << 33);
  writer_.SetFault(Error(ErrorCode::kLayerClosed, "layer 3"));
  writer_.Flush();  // without a link nothing happens
  const auto endpoint = Link();
  writer_.Flush();
  EXPECT_EQ(board_.magic(), kBoardMagic);
  EXPECT_EQ(board_.epoch(), 42u);
  EXPECT_EQ(board_.released(0), 0u);
  EXPECT_EQ(board_.released(1), 7u);
  EXPECT_EQ(board_.published(0), 1u);
  EXPECT_EQ(board_.published(4), 1ull << 40);
  EXPECT_EQ(board_.current_step(), 1ull << 33);
  EXPECT_EQ(board_.fault(), ErrorCode::kLayerClosed);
  EXPECT_EQ(board_.fault_text(), "layer 3");
  EXPECT_EQ(board_.rings(), 1u);
}

// The others are not written again: here something else stands in their place meanwhile.
TEST_P(Writer, OneShardsWordIsWrittenByItself) {
  const auto endpoint = Link();
  writer_.SetPublished({1, 2, 3, 4, 5});
  writer_.Flush();
  const uint64_t marks[kShards] = {91, 92, 93, 94, 95};
  board_.Write(BoardPublishedOffset(kSlots), std::as_bytes(std::span(marks)));
  writer_.SetPublished(2, 30);
  writer_.SetPublished(1, 20);
  writer_.Flush();
  const uint64_t expected[kShards] = {91, 20, 30, 94, 95};
  for (uint32_t i = 0; i < kShards; ++i) EXPECT_EQ(board_.published(i), expected[i]) << i;
  writer_.SetCurrentStep(1);
  writer_.Flush();
  for (uint32_t i = 0; i < kShards; ++i) EXPECT_EQ(board_.published(i), expected[i]) << i;
}

TEST_P(Writer, NothingChangedMeansNothingSent) {
  const auto endpoint = Link();
  writer_.Flush();
  writer_.Flush();
  EXPECT_EQ(board_.rings(), 1u);
  EXPECT_EQ(board_.beat(), 1u);
}

TEST_P(Writer, OneUpdateIsOnItsWayAtMostAndTheRestGoesWithTheNext) {
  const auto endpoint = Link();
  endpoint->HoldCompletions();
  writer_.Flush();
  const uint64_t rings = board_.rings();
  for (uint32_t count = 1; count <= 100; ++count) {
    writer_.SetReleased(2, count);
    writer_.Flush();
  }
  EXPECT_EQ(board_.rings(), rings);
  endpoint->CompleteHeld(OkStatus());
  EXPECT_EQ(board_.rings(), rings + 1);
  EXPECT_EQ(board_.released(2), 100u);
  endpoint->CompleteHeld(OkStatus());
  EXPECT_EQ(board_.rings(), rings + 1);
}

TEST_P(Writer, AFailedLinkStopsItUntilTheNextLink) {
  const auto first = Link();
  writer_.Flush();
  first->Break();
  writer_.SetReleased(0, 1);
  writer_.Flush();
  writer_.Flush();
  const auto second = Link();
  writer_.Flush();
  EXPECT_EQ(board_.released(0), 1u);
}

TEST_P(Writer, ALateFailureOfAnOldLinkDoesNotStopTheNewOne) {
  const auto first = Link();
  first->HoldCompletions();
  writer_.Flush();
  const auto second = Link();
  first->CompleteHeld(Error(ErrorCode::kUnavailable, "broken"));
  writer_.SetReleased(0, 5);
  writer_.Flush();
  EXPECT_EQ(board_.released(0), 5u);
}

TEST_P(Writer, TheFirstFaultStaysAndALongTextIsCut) {
  const auto endpoint = Link();
  writer_.SetFault(Error(ErrorCode::kCorrupt, "{}", std::string(1000, 'x')));
  writer_.SetFault(Error(ErrorCode::kInternal, "second"));
  writer_.Flush();
  EXPECT_EQ(board_.fault(), ErrorCode::kCorrupt);
  EXPECT_EQ(board_.fault_text(), std::string(255, 'x'));
}

TEST_P(Writer, AfterDetachNothingIsWritten) {
  const auto endpoint = Link();
  writer_.Flush();
  writer_.Detach();
  writer_.SetReleased(0, 9);
  writer_.Flush();
  EXPECT_EQ(board_.released(0), 0u);
}

TEST_P(Writer, ABoardWithoutShardsWorks) {
  FakeBoard board(kSlots, 0);
  BoardWriter writer({1, kSlots, 0});
  writer.SetPublished({});
  const auto endpoint = std::make_shared<FakeEndpoint>(&board, GetParam());
  writer.Attach(endpoint);
  writer.Flush();
  EXPECT_EQ(board.magic(), kBoardMagic);
  writer.Detach();
}

}  // namespace
}  // namespace luwu
