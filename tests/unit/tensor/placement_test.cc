#include "common/tensor/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace luwu {
namespace {

Node MakeNode(const std::string& name, uint32_t weight, int port = 7000) {
  return {name, weight, name + ":" + std::to_string(port), name + ":7001", ""};
}

std::vector<Node> NodesOf(const std::vector<uint32_t>& weights) {
  std::vector<Node> out;
  for (size_t i = 0; i < weights.size(); ++i) {
    out.push_back(MakeNode("n" + std::to_string(i), weights[i]));
  }
  return out;
}

JobSpec SpecOf(const std::vector<uint64_t>& layer_elements, uint64_t shard_elements = 64) {
  JobSpec spec;
  spec.shard_elements = shard_elements;
  for (size_t i = 0; i < layer_elements.size(); ++i) {
    spec.layers.push_back({"l" + std::to_string(i), layer_elements[i], {}});
  }
  return spec;
}

TEST(ShardArithmeticTest, AtTheEdgesOfAShard) {
  struct Case {
    uint64_t elements, shards, last;
  };
  constexpr uint64_t kShard = 1024;
  for (const Case& c :
       {Case{0, 0, 0}, Case{1, 1, 1}, Case{63, 1, 63}, Case{64, 1, 64}, Case{65, 1, 65},
        Case{kShard - 1, 1, kShard - 1}, Case{kShard, 1, kShard}, Case{kShard + 1, 2, 1},
        Case{2 * kShard, 2, kShard}, Case{kElementsMax, kElementsMax / kShard, kShard},
        Case{~uint64_t{0}, (uint64_t{1} << 54), kShard - 1}}) {
    ASSERT_EQ(ShardCount(c.elements, kShard), c.shards) << c.elements;
    if (c.shards == 0) continue;
    const ShardRange last = RangeOfShard(c.elements, kShard, c.shards - 1);
    EXPECT_EQ(last.first, (c.shards - 1) * kShard) << c.elements;
    EXPECT_EQ(last.elements, c.last) << c.elements;
    EXPECT_EQ(last.first + last.elements, c.elements);
  }
}

TEST(ShardArithmeticDeathTest, RefusesAShardBeyondTheLast) {
  EXPECT_DEATH(RangeOfShard(64, 64, 1), "shard must exist");
  EXPECT_DEATH(RangeOfShard(0, 64, 0), "shard must exist");
}

TEST(PlacementTest, SmoothRoundRobinOrder) {
  // The sequence of the algorithm's published example, weights 5, 1, 1.
  const Placement placement(NodesOf({5, 1, 1}), SpecOf({64 * 14}));
  std::vector<uint32_t> owners;
  for (uint64_t shard = 0; shard < 14; ++shard) owners.push_back(placement.NodeOf(0, shard));
  EXPECT_EQ(owners, (std::vector<uint32_t>{0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0}));
}

TEST(PlacementTest, SmallLayersRotateOverTheNodes) {
  const Placement placement(NodesOf({1, 1, 1}), SpecOf({1, 64, 65, 1, 1}));
  EXPECT_EQ(placement.NodeOf(0, 0), 0u);
  EXPECT_EQ(placement.NodeOf(1, 0), 1u);
  EXPECT_EQ(placement.NodeOf(2, 0), 2u);
  EXPECT_EQ(placement.NodeOf(2, 1), 0u);
  EXPECT_EQ(placement.NodeOf(3, 0), 1u);
  EXPECT_EQ(placement.NodeOf(4, 0), 2u);
}

TEST(PlacementTest, SharesFollowTheWeights) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> weights(1 + random() % 8);
    uint64_t total = 0;
    for (uint32_t& weight : weights) total += weight = random() % 6;
    if (total == 0) continue;
    const uint64_t periods = 3;
    const Placement placement(NodesOf(weights), SpecOf({64 * total * periods}));
    std::vector<uint64_t> shares(weights.size());
    for (uint64_t shard = 0; shard < total * periods; ++shard) {
      ++shares.at(placement.NodeOf(0, shard));
    }
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(shares[i], periods * weights[i]);
  }
}

TEST(PlacementTest, EqualFactorsInTheWeightsChangeNothing) {
  const JobSpec spec = SpecOf({64 * 40, 64 * 3});
  const Placement small(NodesOf({2, 3, 0, 1}), spec);
  const Placement large(NodesOf({200, 300, 0, 100}), spec);
  for (uint64_t shard = 0; shard < 40; ++shard) {
    EXPECT_EQ(small.NodeOf(0, shard), large.NodeOf(0, shard));
  }
}

TEST(PlacementTest, IsAFunctionOfItsArgumentsOnly) {
  const std::vector<Node> nodes = NodesOf({3, 0, 2});
  const JobSpec spec = SpecOf({64 * 100, 5, 64 * 9});
  const Placement a(nodes, spec);
  const Placement b(nodes, spec);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint64_t shard = 0; shard < ShardCount(spec.layers[layer].elements, 64); ++shard) {
      EXPECT_EQ(a.NodeOf(layer, shard), b.NodeOf(layer, shard));
      EXPECT_NE(a.NodeOf(layer, shard), 1u) << "a node of weight 0 owns nothing";
    }
  }
}

TEST(PlacementTest, TheFirstWeightedNodeLeads) {
  EXPECT_EQ(Placement(NodesOf({0, 0, 4, 1}), SpecOf({1})).lead(), 2u);
  EXPECT_EQ(Placement(NodesOf({1}), SpecOf({1})).lead(), 0u);
}

TEST(ValidateNodesTest, AcceptsAPlainList) {
  EXPECT_TRUE(ValidateNodes(NodesOf({1, 0, 1000})).ok());
  Node v6 = MakeNode("v6", 1);
  v6.control_address = "[::1]:7000";
  EXPECT_TRUE(ValidateNodes({v6}).ok());
  Node shm_only = MakeNode("s", 1);
  shm_only.data_address.clear();
  shm_only.shm_path = "/run/luwu/s.sock";
  EXPECT_TRUE(ValidateNodes({shm_only}).ok());
}

TEST(ValidateNodesTest, RefusesAndNamesTheNode) {
  const auto refused = [](std::vector<Node> nodes, const std::string& wanted) {
    const Status status = ValidateNodes(nodes);
    EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument) << wanted;
    EXPECT_NE(MessageOf(status).find(wanted), std::string::npos) << MessageOf(status);
  };
  refused({}, "0 entries");
  refused(NodesOf({0, 0}), "all nodes have weight 0");
  refused(NodesOf({1, 1001}), "node 'n1': weight is 1001");
  refused({MakeNode("a", 1), MakeNode("a", 1, 7005)}, "'a' is listed twice");
  Node twin = MakeNode("b", 1);
  twin.control_address = "a:7000";
  refused({MakeNode("a", 1), twin}, "node 'b'");
  refused({MakeNode("", 1)}, "node 0 ''");
  refused({MakeNode("with space", 1)}, "'with space'");
  refused({MakeNode(std::string(65, 'x'), 1)}, "node 0");
  for (const char* address :
       {"", "host", ":7000", "host:", "host:0", "host:65536", "host:7x", "host:-1"}) {
    Node node = MakeNode("a", 1);
    node.control_address = address;
    refused({node}, "control_address");
    if (*address == '\0') continue;
    node = MakeNode("a", 1);
    node.data_address = address;
    refused({node}, "data_address");
  }
  Node unreachable = MakeNode("a", 1);
  unreachable.data_address.clear();
  refused({unreachable}, "no data plane");
  Node long_path = MakeNode("a", 1);
  long_path.shm_path = "/" + std::string(107, 'p');
  refused({long_path}, "shm_path");
  std::vector<Node> crowd;
  for (uint32_t i = 0; i <= kNodesMax; ++i) crowd.push_back(MakeNode("n" + std::to_string(i), 1));
  refused(crowd, "1025 entries");
  crowd.pop_back();
  EXPECT_TRUE(ValidateNodes(crowd).ok());
}

TEST(NodesFingerprintTest, EveryFieldAndTheOrderCount) {
  const std::vector<Node> base = {MakeNode("a", 1), MakeNode("b", 2)};
  std::vector<std::vector<Node>> variants(8, base);
  variants[1][0].name = "c";
  variants[2][0].weight = 2;
  variants[3][1].control_address = "b:1";
  variants[4][1].data_address = "b:2";
  variants[5][1].shm_path = "/x";
  std::swap(variants[6][0], variants[6][1]);
  variants[7].pop_back();
  std::set<uint64_t> seen;
  for (const auto& nodes : variants) seen.insert(FingerprintOf(nodes));
  EXPECT_EQ(seen.size(), variants.size());
  EXPECT_EQ(FingerprintOf(base), FingerprintOf(std::vector<Node>(base)));
}

}  // namespace
}  // namespace luwu
