#include "server/step/update_seats.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

using Seats = std::vector<UpdateSeat>;

const std::vector<uint32_t> kAllowed = {0, 1, 2, 3, 4, 5};
const std::vector<NumaNode> kOne = {{0, kAllowed}};
const std::vector<NumaNode> kTwo = {{0, {0, 1, 2, 3}}, {1, {4, 5}}};

TEST(UpdateSeats, OnOneNodeThreadsRunAnywhereOrOneToACpu) {
  for (const std::vector<NumaNode>& nodes : {std::vector<NumaNode>(), kOne}) {
    EXPECT_EQ(SeatsFor(3, false, nodes, kAllowed), Seats(3));
    EXPECT_EQ(SeatsFor(7, true, nodes, kAllowed),
              (Seats{{0, {0}}, {0, {1}}, {0, {2}}, {0, {3}}, {0, {4}}, {0, {5}}, {0, {0}}}));
    EXPECT_EQ(HomesOf(SeatsFor(7, true, nodes, kAllowed)).homes(), 1u);
  }
}

TEST(UpdateSeats, OnSeveralNodesTheyAreDealtOutInProportionToTheCpus) {
  const std::vector<uint32_t>& first = kTwo[0].cpus;
  const std::vector<uint32_t>& second = kTwo[1].cpus;
  EXPECT_EQ(SeatsFor(6, false, kTwo, kAllowed),
            (Seats{{0, first}, {1, second}, {0, first}, {1, second}, {0, first}, {0, first}}));
  EXPECT_EQ(SeatsFor(7, true, kTwo, kAllowed),
            (Seats{{0, {0}}, {1, {4}}, {0, {1}}, {1, {5}}, {0, {2}}, {0, {3}}, {0, {0}}}));
}

TEST(UpdateSeats, OneThreadServesAllNodesFromWhereverItRuns) {
  EXPECT_EQ(SeatsFor(1, false, kTwo, kAllowed), Seats(1));
}

TEST(UpdateSeats, AHostThatDoesNotTellItsCpusPinsNobody) {
  EXPECT_EQ(SeatsFor(2, true, {}, {}), Seats(2));
}

TEST(UpdateSeats, ShardsFollowTheThreads) {
  const ShardHomes homes = HomesOf(SeatsFor(6, false, kTwo, kAllowed));
  EXPECT_EQ(homes.homes(), 2u);
  const uint32_t expected[] = {0, 1, 0, 1, 0, 0, 0, 1};
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(homes.HomeOf(i), expected[i]) << i;
}

}  // namespace
}  // namespace luwu
