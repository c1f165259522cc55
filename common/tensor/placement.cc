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

// Smooth weighted round-robin over one period.
std::vector<uint32_t> PatternOf(const std::vector<Node>& nodes) {
  uint32_t divisor = 0;
  for (const Node& node : nodes) divisor = std::gcd(divisor, node.weight);
  std::vector<int64_t> weights;
  int64_t total = 0;
  for (const Node& node : nodes) {
    weights.push_back(node.weight / divisor);
    total += weights.back();
  }
  std::vector<int64_t> counters(nodes.size(), 0);
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
  pattern_ = PatternOf(nodes);
  offsets_.reserve(spec.layers.size());
  uint64_t before = 0;
  for (const LayerSpec& layer : spec.layers) {
    offsets_.push_back(before);
    before += ShardCount(layer.elements, spec.shard_elements);
  }
}

}  // namespace luwu
