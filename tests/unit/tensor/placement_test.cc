#include "common/tensor/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
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

std::vector<uint64_t> ElementsByNode(const std::vector<Node>& nodes, const JobSpec& spec) {
  const Placement placement(nodes, spec);
  std::vector<uint64_t> elements(nodes.size());
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const uint64_t length = spec.layers[layer].elements;
    for (uint64_t shard = 0; shard < ShardCount(length, spec.shard_elements); ++shard) {
      elements[placement.NodeOf(layer, shard)] +=
          RangeOfShard(length, spec.shard_elements, shard).elements;
    }
  }
  return elements;
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

TEST(PlacementTest, EachLayerBeginsWhereLeastIs) {
  const Placement placement(NodesOf({1, 1, 1}), SpecOf({1, 64, 65, 1, 1}));
  EXPECT_EQ(placement.NodeOf(0, 0), 0u);  // 1 0 0
  EXPECT_EQ(placement.NodeOf(1, 0), 1u);  // 1 64 0
  EXPECT_EQ(placement.NodeOf(2, 0), 2u);
  EXPECT_EQ(placement.NodeOf(2, 1), 0u);  // 2 64 64
  EXPECT_EQ(placement.NodeOf(3, 0), 0u);
  EXPECT_EQ(placement.NodeOf(4, 0), 0u);
}

TEST(PlacementTest, EqualSmallLayersRotateOverTheNodes) {
  const Placement placement(NodesOf({1, 1, 1}), SpecOf({7, 7, 7, 7, 7, 7}));
  for (uint32_t layer = 0; layer < 6; ++layer) EXPECT_EQ(placement.NodeOf(layer, 0), layer % 3);
}

TEST(PlacementTest, AlternatingLargeAndSmallLayersSpreadEvenly) {
  std::vector<uint64_t> layers;
  for (int i = 0; i < 20; ++i) {
    layers.push_back(60);
    layers.push_back(2);
  }
  const std::vector<uint64_t> share = ElementsByNode(NodesOf({1, 1}), SpecOf(layers));
  EXPECT_EQ(share[0], share[1]);
}

TEST(PlacementTest, FrozenLayersAreBalancedApart) {
  JobSpec spec = SpecOf({64, 64, 64, 64});
  spec.layers[0].tensors = {{"t0", {64}}};
  spec.layers[2].tensors = {{"t2", {64}}};
  const Placement placement(NodesOf({1, 1}), spec);
  EXPECT_NE(placement.NodeOf(0, 0), placement.NodeOf(2, 0)) << "both have state and gradients";
  EXPECT_NE(placement.NodeOf(1, 0), placement.NodeOf(3, 0));
}

// Whatever the layers and weights, no node is off its share by more than a few shards.
TEST(PlacementTest, EveryNodeHasItsShareOfRandomLayers) {
  std::mt19937 random(5);
  double worst = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<uint32_t> weights(1 + random() % 9);
    uint64_t total_weight = 0;
    for (uint32_t& weight : weights) total_weight += weight = random() % 2 ? 1 : random() % 5;
    if (total_weight == 0) continue;
    const uint64_t largest = uint64_t{1} << (random() % 12);  // tails only, up to many shards
    std::vector<uint64_t> layers(1 + random() % 200);
    uint64_t total = 0;
    for (uint64_t& elements : layers) total += elements = 1 + random() % largest;
    const std::vector<uint64_t> share = ElementsByNode(NodesOf(weights), SpecOf(layers));
    EXPECT_EQ(std::accumulate(share.begin(), share.end(), uint64_t{0}), total);
    const double unit = static_cast<double>(std::min<uint64_t>(largest, 64));
    for (size_t i = 0; i < weights.size(); ++i) {
      const double due = static_cast<double>(total) * weights[i] / total_weight;
      worst = std::max(worst, std::abs(static_cast<double>(share[i]) - due) / unit);
    }
  }
  EXPECT_LT(worst, 3) << "shards";
}

TEST(PlacementTest, ManyLayersDoNotAddUpToAnImbalance) {
  // Sizes that repeat with the number of nodes are what a plain rotation fails at.
  for (const std::vector<uint32_t>& weights :
       {std::vector<uint32_t>{1, 1}, {1, 1, 1, 1}, {3, 1, 2}, {5, 1, 1}}) {
    std::vector<uint64_t> layers;
    uint64_t total = 0;
    for (int i = 0; i < 5000; ++i) {
      const uint64_t sizes[] = {63, 1, 64 * 3 + 7, 5};
      layers.push_back(sizes[i % 4]);
      total += layers.back();
    }
    const std::vector<uint64_t> share = ElementsByNode(NodesOf(weights), SpecOf(layers));
    const uint64_t total_weight = std::accumulate(weights.begin(), weights.end(), 0u);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double due = static_cast<double>(total) * weights[i] / total_weight;
      EXPECT_NEAR(static_cast<double>(share[i]), due, 3 * 64) << i;
    }
  }
}

TEST(PlacementTest, ALongListOfOddWeightsIsPlacedInBoundedTime) {
  std::vector<uint32_t> weights;
  for (uint32_t i = 0; i < 64; ++i) weights.push_back(937 + i);  // a pattern of 62,000
  const std::vector<uint64_t> share =
      ElementsByNode(NodesOf(weights), SpecOf(std::vector<uint64_t>(2000, 64 * 40)));
  for (const uint64_t elements : share) EXPECT_NEAR(elements, 64 * 1250, 64 * 125);
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
