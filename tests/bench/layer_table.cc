#include "tests/bench/layer_table.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace luwu::bench {

uint64_t BenchJob::elements() const {
  uint64_t total = 0;
  for (const BenchLayer& layer : layers) total += layer.elements;
  return total;
}

uint64_t BenchJob::largest_layer() const {
  uint64_t largest = 0;
  for (const BenchLayer& layer : layers) largest = std::max(largest, layer.elements);
  return largest;
}

uint64_t BenchJob::wire_bytes() const { return WireBytes(wire_dtype); }

DType DTypeOf(const std::string& wire_dtype) {
  if (wire_dtype == "fp32") return DType::kFloat32;
  return wire_dtype == "fp16" ? DType::kFloat16 : DType::kBFloat16;
}

Json ToJson(const BenchJob& job) {
  Json layers = Json::array();
  for (const BenchLayer& layer : job.layers) layers.push_back({layer.name, layer.elements});
  return {{"name", job.name},
          {"world_size", job.world_size},
          {"layers", std::move(layers)},
          {"adamw", job.adamw},
          {"wire_dtype", job.wire_dtype},
          {"keep_undo_state", job.keep_undo_state},
          {"slots_per_worker", job.slots_per_worker},
          {"shard_elements", job.shard_elements}};
}

BenchJob JobFromJson(const Json& json) {
  BenchJob job;
  json.at("name").get_to(job.name);
  json.at("world_size").get_to(job.world_size);
  for (const Json& layer : json.at("layers")) job.layers.push_back({layer.at(0), layer.at(1)});
  json.at("adamw").get_to(job.adamw);
  json.at("wire_dtype").get_to(job.wire_dtype);
  json.at("keep_undo_state").get_to(job.keep_undo_state);
  json.at("slots_per_worker").get_to(job.slots_per_worker);
  json.at("shard_elements").get_to(job.shard_elements);
  return job;
}

std::vector<BenchLayer> EqualLayers(uint64_t params, uint64_t layers) {
  std::vector<BenchLayer> table;
  for (uint64_t i = 0; i < layers; ++i) {
    const uint64_t elements = params * (i + 1) / layers - params * i / layers;
    table.push_back({fmt::format("layer.{}", i), elements});
  }
  return table;
}

StatusOr<std::vector<BenchLayer>> ReadLayerTable(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error(ErrorCode::kNotFound, "cannot read the layer table {}", path);
  std::vector<BenchLayer> table;
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    std::istringstream fields(line.substr(0, line.find('#')));
    BenchLayer layer;
    if (!(fields >> layer.name)) continue;
    std::string rest;
    if (!(fields >> layer.elements) || layer.elements == 0 || fields >> rest) {
      return Error(ErrorCode::kInvalidArgument,
                   "{}:{}: expected \"name elements\" with at least one element, got \"{}\"", path,
                   number, line);
    }
    table.push_back(std::move(layer));
  }
  if (table.empty()) return Error(ErrorCode::kInvalidArgument, "{} names no layer", path);
  return table;
}

}  // namespace luwu::bench
