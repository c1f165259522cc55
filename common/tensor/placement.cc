#include "common/tensor/placement.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <unordered_set>

#include "common/base/check.h"
#include "common/tensor/fingerprint.h"

namespace luwu {
namespace {

constexpr size_t kNodeNameMax = 64;
constexpr size_t kShmPathMax = 107;  // sockaddr_un

Status CheckNodeName(size_t index, const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kNodeNameMax ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return Error(ErrorCode::kInvalidArgument,
                 "node {} '{}': give it a name of 1 to {} letters, digits, '.', '_' or '-'", index,
                 name, kNodeNameMax);
  }
  return OkStatus();
}

Status CheckAddress(const Node& node, std::string_view field, const std::string& address) {
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  bool valid = colon != std::string::npos && colon > 0;
  if (valid) {
    const char* end = address.data() + address.size();
    const auto [rest, error] = std::from_chars(address.data() + colon + 1, end, port);
    valid = error == std::errc() && rest == end && port > 0;
  }
  if (valid) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "node '{}': {} is '{}'; write host:port with a port of 1 to 65535", node.name, field,
               address);
}

Status CheckNode(size_t index, const Node& node) {
  RETURN_IF_ERROR(CheckNodeName(index, node.name));
  if (node.weight > kNodeWeightMax) {
    return Error(ErrorCode::kInvalidArgument, "node '{}': weight is {}; choose 0 to {}", node.name,
                 node.weight, kNodeWeightMax);
  }
  RETURN_IF_ERROR(CheckAddress(node, "control_address", node.control_address));
  if (!node.data_address.empty()) {
    RETURN_IF_ERROR(CheckAddress(node, "data_address", node.data_address));
  }
  if (node.shm_path.size() > kShmPathMax) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}': shm_path has {} characters, a socket path may have {}", node.name,
                 node.shm_path.size(), kShmPathMax);
  }
  if (node.weight > 0 && node.data_address.empty() && node.shm_path.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "node '{}' has weight {} but no data plane; give it a data_address or a shm_path",
                 node.name, node.weight);
  }
  return OkStatus();
}

// Without common factors.
std::vector<int64_t> WeightsOf(const std::vector<Node>& nodes) {
  uint32_t divisor = 0;
  for (const Node& node : nodes) divisor = std::gcd(divisor, node.weight);
  std::vector<int64_t> weights;
  for (const Node& node : nodes) weights.push_back(node.weight / divisor);
  return weights;
}

// Smooth weighted round-robin over one period.
std::vector<uint32_t> PatternOf(const std::vector<int64_t>& weights) {
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> counters(weights.size(), 0);
  std::vector<uint32_t> pattern;
  pattern.reserve(total);
  while (static_cast<int64_t>(pattern.size()) < total) {
    for (size_t i = 0; i < counters.size(); ++i) counters[i] += weights[i];
    const auto largest = std::max_element(counters.begin(), counters.end());
    *largest -= total;
    pattern.push_back(static_cast<uint32_t>(largest - counters.begin()));
  }
  return pattern;
}

// Up to kElementsMax (2^44) times kLoadScale, times 2^26 elements, for each of 2^20 shards.
__extension__ typedef unsigned __int128 Cost;

// What the nodes have of one kind of layers, and where the next layer had best begin.
class Balance {
 public:
  // The arguments outlive this object.
  Balance(const std::vector<int64_t>& weights, const std::vector<uint32_t>& pattern)
      : weights_(weights), pattern_(pattern), elements_(weights.size()), loads_(weights.size()) {}

  // In [0, pattern length); `from` is looked at first.
  uint64_t ChooseOffset(uint64_t layer_elements, uint64_t shard_elements, uint64_t from) const {
    const uint64_t full = layer_elements / shard_elements;
    const uint64_t tail = layer_elements % shard_elements;
    // Whole periods weigh the same from every offset.
    const uint64_t rest = full % pattern_.size();
    Cost window = 0;
    for (uint64_t k = 0; k < rest; ++k) window += LoadAt(from + k);
    uint64_t best = from;
    Cost best_cost = ~Cost{0};
    const uint64_t end = from + std::min<uint64_t>(pattern_.size(), kOffsetsMax);
    for (uint64_t offset = from; offset < end; ++offset) {
      const Cost cost = window * shard_elements + LoadAt(offset + full) * tail;
      if (cost < best_cost) {
        best = offset;
        best_cost = cost;
      }
      window += LoadAt(offset + rest) - LoadAt(offset);
    }
    return best % pattern_.size();
  }

  void Add(uint64_t layer_elements, uint64_t shard_elements, uint64_t offset) {
    const uint64_t full = layer_elements / shard_elements;
    const uint64_t periods = full / pattern_.size();
    for (uint32_t node = 0; periods > 0 && node < weights_.size(); ++node) {
      AddTo(node, periods * weights_[node] * shard_elements);
    }
    for (uint64_t k = periods * pattern_.size(); k < full; ++k) {
      AddTo(NodeAt(offset + k), shard_elements);
    }
    AddTo(NodeAt(offset + full), layer_elements % shard_elements);
  }

 private:
  static constexpr uint64_t kOffsetsMax = 1024;  // bounds the time for lists of odd weights
  static constexpr uint64_t kLoadScale = 1024;   // above the largest weight: quotients stay apart

  uint32_t NodeAt(uint64_t position) const { return pattern_[position % pattern_.size()]; }
  Cost LoadAt(uint64_t position) const { return loads_[NodeAt(position)]; }
  void AddTo(uint32_t node, uint64_t elements) {
    elements_[node] += elements;
    if (weights_[node] > 0) loads_[node] = elements_[node] * kLoadScale / weights_[node];
  }

  const std::vector<int64_t>& weights_;
  const std::vector<uint32_t>& pattern_;
  std::vector<uint64_t> elements_;  // by node
  std::vector<uint64_t> loads_;     // by node: elements per weight, scaled
};

}  // namespace

Status ValidateNodes(const std::vector<Node>& nodes) {
  if (nodes.empty() || nodes.size() > kNodesMax) {
    return Error(ErrorCode::kInvalidArgument, "the node list has {} entries; give it 1 to {}",
                 nodes.size(), kNodesMax);
  }
  std::unordered_set<std::string_view> names;
  std::unordered_set<std::string_view> addresses;
  bool weighted = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    RETURN_IF_ERROR(CheckNode(i, node));
    if (!names.insert(node.name).second) {
      return Error(ErrorCode::kInvalidArgument, "node '{}' is listed twice; names must differ",
                   node.name);
    }
    if (!addresses.insert(node.control_address).second) {
      return Error(ErrorCode::kInvalidArgument,
                   "node '{}': another node has the control_address {}; addresses must differ",
                   node.name, node.control_address);
    }
    weighted = weighted || node.weight > 0;
  }
  if (!weighted) {
    return Error(ErrorCode::kInvalidArgument,
                 "all nodes have weight 0; give at least one a positive weight");
  }
  return OkStatus();
}

uint64_t FingerprintOf(const std::vector<Node>& nodes) {
  Fingerprint out;
  out.Add(kLayoutRevision);
  out.Add(nodes.size());
  for (const Node& node : nodes) {
    out.Add(node.name);
    out.Add(node.weight);
    out.Add(node.control_address);
    out.Add(node.data_address);
    out.Add(node.shm_path);
  }
  return out.Value();
}

uint64_t ShardCount(uint64_t layer_elements, uint64_t shard_elements) {
  LUWU_CHECK(shard_elements > 0, "a spec is validated before shards are counted");
  return layer_elements / shard_elements + (layer_elements % shard_elements != 0 ? 1 : 0);
}

ShardRange RangeOfShard(uint64_t layer_elements, uint64_t shard_elements, uint64_t shard) {
  LUWU_CHECK(shard < ShardCount(layer_elements, shard_elements), "the shard must exist");
  const uint64_t first = shard * shard_elements;
  return {first, std::min(shard_elements, layer_elements - first)};
}

Placement::Placement(const std::vector<Node>& nodes, const JobSpec& spec)
    : node_count_(static_cast<uint32_t>(nodes.size())) {
  const auto lead =
      std::find_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.weight > 0; });
  LUWU_CHECK(lead != nodes.end(), "a node list is validated before placement");
  lead_ = static_cast<uint32_t>(lead - nodes.begin());
  const std::vector<int64_t> weights = WeightsOf(nodes);
  pattern_ = PatternOf(weights);
  offsets_.reserve(spec.layers.size());
  Balance trainable(weights, pattern_);
  Balance frozen(weights, pattern_);
  uint64_t end = 0;
  for (const LayerSpec& layer : spec.layers) {
    Balance& balance = layer.trainable() ? trainable : frozen;
    const uint64_t offset = balance.ChooseOffset(layer.elements, spec.shard_elements, end);
    balance.Add(layer.elements, spec.shard_elements, offset);
    offsets_.push_back(offset);
    end = (offset + ShardCount(layer.elements, spec.shard_elements)) % pattern_.size();
  }
}

}  // namespace luwu
