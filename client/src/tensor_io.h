// Writing initial masters and reading masters and moments, over the control plane's streams. Called
// by the session, any thread; blocks until done or the deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/session_rpc.h"

namespace luwu::client {

// Elements [offset, offset + count) of a layer.
struct LayerRange {
  uint32_t layer = 0;
  uint64_t offset = 0;
};

class TensorIo {
 public:
  TensorIo(Fabric* fabric, const std::vector<std::unique_ptr<NodeRpc>>* rpcs)
      : fabric_(fabric), rpcs_(rpcs) {}

  Status Load(const LayerRange& range, std::span<const float> values, TimePoint deadline);
  Status FinishLoad(bool allow_missing, TimePoint deadline);
  // All values are of one version: when a commit comes in between, the read begins anew.
  Status Read(const LayerRange& range, ReadQuantity quantity, std::span<float> values,
              TimePoint deadline);

 private:
  // The part of a shard that a range wants.
  struct Wanted {
    uint64_t first = 0;  // within the layer
    uint64_t count = 0;
  };
  static Wanted Intersect(ShardRange shard, uint64_t offset, uint64_t count);
  Status CheckRange(const LayerRange& range, uint64_t count) const;
  Status LoadNode(const LayerPlan::NodeShards& node, const LayerRange& range,
                  std::span<const float> values, TimePoint deadline);
  struct ReadResult;
  Status ReadNode(const LayerPlan::NodeShards& node, const LayerRange& range, ReadQuantity quantity,
                  TimePoint deadline, ReadResult* result);

  Fabric* const fabric_;
  const std::vector<std::unique_ptr<NodeRpc>>* const rpcs_;
};

}  // namespace luwu::client
