#include "client/src/tensor_io.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "client/src/node_calls.h"
#include "common/base/bytes.h"

namespace luwu::client {

// What a read has gathered so far.
struct TensorIo::ReadResult {
  std::span<float> values;
  uint64_t received = 0;  // elements of the wanted range
  std::optional<uint64_t> version;
  bool versions_differ = false;
};

TensorIo::Wanted TensorIo::Intersect(ShardRange shard, uint64_t offset, uint64_t count) {
  const uint64_t first = std::max(shard.first, offset);
  const uint64_t end = std::min(shard.first + shard.elements, offset + count);
  return {first, end > first ? end - first : 0};
}

Status TensorIo::CheckRange(const LayerRange& range, uint64_t count) const {
  const LayerSpec& layer = fabric_->plan().spec().layers[range.layer];
  if (RangeFits(range.offset, count, layer.elements)) return OkStatus();
  return Error(ErrorCode::kInvalidArgument,
               "range [{}, +{}) lies outside layer '{}' of {} elements", range.offset, count,
               layer.name, layer.elements);
}

Status TensorIo::Load(const LayerRange& range, std::span<const float> values, TimePoint deadline) {
  RETURN_IF_ERROR(CheckRange(range, values.size()));
  for (const LayerPlan::NodeShards& node : fabric_->plan().layers()[range.layer].by_node) {
    RETURN_IF_ERROR(CallPatiently(*fabric_, node.node, deadline,
                                  [&] { return LoadNode(node, range, values, deadline); }));
  }
  return OkStatus();
}

Status TensorIo::LoadNode(const LayerPlan::NodeShards& node, const LayerRange& range,
                          std::span<const float> values, TimePoint deadline) {
  const LayerPlan& layer = fabric_->plan().layers()[range.layer];
  std::unique_ptr<NodeRpc::LoadStream> stream;
  for (const uint32_t index : node.shards) {
    const ShardRange shard = layer.shards[index].range;
    const Wanted wanted = Intersect(shard, range.offset, values.size());
    if (wanted.count == 0) continue;
    if (stream == nullptr) stream = (*rpcs_)[node.node]->OpenLoad(deadline);
    const bool written =
        stream->Write({.layer = range.layer,
                       .shard = index,
                       .offset = wanted.first - shard.first,
                       .values = values.subspan(wanted.first - range.offset, wanted.count)});
    if (!written) break;
  }
  return stream == nullptr ? OkStatus() : stream->Finish();
}

Status TensorIo::FinishLoad(bool allow_missing, TimePoint deadline) {
  const auto finish = [&](NodeRpc& rpc, NodeRpc::Done<Nothing> done) {
    rpc.FinishLoad(allow_missing, deadline, std::move(done));
  };
  return CallActiveNodes<Nothing>(*fabric_, *rpcs_, deadline, finish).status();
}

Status TensorIo::Read(const LayerRange& range, ReadQuantity quantity, std::span<float> values,
                      TimePoint deadline) {
  RETURN_IF_ERROR(CheckRange(range, values.size()));
  if (values.empty()) return OkStatus();
  while (true) {
    ReadResult result;
    result.values = values;
    for (const LayerPlan::NodeShards& node : fabric_->plan().layers()[range.layer].by_node) {
      RETURN_IF_ERROR(CallPatiently(*fabric_, node.node, deadline, [&] {
        return ReadNode(node, range, quantity, deadline, &result);
      }));
    }
    if (!result.versions_differ && result.received >= values.size()) return OkStatus();
    const std::string& layer = fabric_->plan().spec().layers[range.layer].name;
    if (!result.versions_differ) {
      return Error(ErrorCode::kInternal, "read of layer '{}': {} of {} elements came", layer,
                   result.received, values.size());
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error(ErrorCode::kDeadline,
                   "read of layer '{}': steps are being committed while it is read; read between "
                   "two commits",
                   layer);
    }
  }
}

Status TensorIo::ReadNode(const LayerPlan::NodeShards& node, const LayerRange& range,
                          ReadQuantity quantity, TimePoint deadline, ReadResult* result) {
  const LayerPlan& layer = fabric_->plan().layers()[range.layer];
  const uint64_t received_before = result->received;
  const auto sink = [&](const NodeRpc::ReadPiece& piece) -> Status {
    const uint64_t count = piece.bytes.size() / sizeof(float);
    if (piece.shard >= layer.shards.size() || piece.bytes.size() % sizeof(float) != 0 ||
        !RangeFits(piece.offset, count, layer.shards[piece.shard].range.elements)) {
      return Error(ErrorCode::kInternal, "a piece of shard {} does not fit the layer", piece.shard);
    }
    const ShardRange covered{layer.shards[piece.shard].range.first + piece.offset, count};
    const Wanted wanted = Intersect(covered, range.offset, result->values.size());
    if (wanted.count == 0) return OkStatus();
    std::memcpy(&result->values[wanted.first - range.offset],
                piece.bytes.data() + (wanted.first - covered.first) * sizeof(float),
                wanted.count * sizeof(float));
    result->received += wanted.count;
    if (!result->version) result->version = piece.version;
    if (*result->version != piece.version) result->versions_differ = true;
    return OkStatus();
  };
  const Status status = (*rpcs_)[node.node]->Read({.job = fabric_->plan().spec().name,
                                                   .epoch = fabric_->options().epoch,
                                                   .layer = range.layer,
                                                   .quantity = quantity},
                                                  deadline, sink);
  if (!status.ok()) result->received = received_before;  // it may be repeated
  if (CodeOf(status) == ErrorCode::kNotFound) {
    return Error(ErrorCode::kStaleEpoch,
                 "{}: the job was deleted, or the daemon was restarted; open it again",
                 MessageOf(status));
  }
  return status;
}

}  // namespace luwu::client
