// Where this worker stands: the open step, and for each layer and shard what of its gradient has
// been pushed. The client keeps micro-steps so that callers need not, finds out misuse before
// anything is sent, and lets a push that ended half-way be repeated without counting twice.
//
// Externally synchronised (the session's monitor).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/src/model_plan.h"
#include "common/base/status.h"

namespace luwu::client {

// What kind of contribution is under way, or ended half-way, for a layer.
enum class PushKind : uint8_t { kNone, kCopy, kInPlace, kClose };

class StepProgress {
 public:
  StepProgress(const ModelPlan& plan, uint64_t current_step);

  uint64_t current_step() const { return current_step_; }
  std::optional<uint64_t> open_step() const { return open_step_; }
  void LearnStep(uint64_t current_step) {
    if (current_step > current_step_) current_step_ = current_step;
  }
  // All nodes have opened `step`. Repeating it for the open step changes nothing.
  void OpenStep(uint64_t step);
  // All nodes have decided `step`.
  void EndStep(uint64_t step);

  // ---- pushing ---------------------------------------------------------------------------------
  // What every contribution to `layer` needs: trainable, a step is open, not closed.
  Status CheckPush(uint32_t layer) const;

  // An asynchronous push was queued: synchronous ones of the layer must come after it.
  Status Queue(uint32_t layer, bool close);
  void Unqueue(uint32_t layer, bool close);
  bool has_queued(uint32_t layer) const { return layers_[layer].queued > 0; }

  // One thread at a time works on a layer; in-place runs are told apart by shard instead.
  bool is_busy(uint32_t layer) const { return layers_[layer].busy; }
  // Starts, or takes up again, a contribution. The layer is busy until Finish, if not in place.
  Status Start(uint32_t layer, PushKind kind, bool close);
  // `sent`: at least one slot went out, now or in an earlier attempt. When `delivered`, the
  // contribution counts; else it must be repeated if anything of it was sent.
  void Finish(uint32_t layer, bool sent, bool delivered);
  uint32_t micro_step(uint32_t layer) const { return layers_[layer].micro_step; }

  // Of the contribution under way: has the node this shard of it?
  bool IsDelivered(uint32_t layer, uint32_t shard) const;
  void MarkDelivered(uint32_t layer, uint32_t shard);
  void MarkNodeDelivered(uint32_t layer, uint32_t node);  // all its shards of the layer
  bool AllDelivered(uint32_t layer) const;
  // In-place runs reserve shards between begin and the end of their operation.
  bool IsReserved(uint32_t layer, uint32_t shard) const;
  void SetReserved(uint32_t layer, uint32_t shard, bool reserved);
  bool AnyReserved(uint32_t layer) const { return layers_[layer].reserved > 0; }

  // Asynchronous contributions that a commit waits for.
  void AddPending() { ++pending_; }
  void RemovePending() { --pending_; }
  bool has_pending() const { return pending_ > 0; }
  // First trainable layer that is not closed in the open step; nothing when all are.
  std::optional<uint32_t> FirstOpenLayer() const;

  // ---- fetching
  // ---------------------------------------------------------------------------------- True when
  // the daemon cannot overwrite `version` of the layer before this worker closes the layer in step
  // version + 1: then its bytes need no further proof than the header.
  bool IsProtected(uint32_t layer, uint64_t version) const;

 private:
  struct Layer {
    bool closed = false;
    bool busy = false;
    bool close = false;         // of the contribution under way
    bool close_queued = false;  // an asynchronous push with close waits
    bool sent = false;          // something of the contribution under way went out
    PushKind kind = PushKind::kNone;
    uint32_t micro_step = 0;  // contributions finished in the open step
    uint32_t queued = 0;
    uint32_t reserved = 0;
    uint64_t guarded_from = 0;  // versions from here on are protected
  };
  struct Shard {
    uint32_t delivered = 0;  // payloads, or 1 more for a close
    bool reserved = false;
  };

  Shard& shard(uint32_t layer, uint32_t shard) {
    return shards_[plan_.layers()[layer].first_shard + shard];
  }
  const Shard& shard(uint32_t layer, uint32_t shard) const {
    return shards_[plan_.layers()[layer].first_shard + shard];
  }
  const std::string& name(uint32_t layer) const { return plan_.spec().layers[layer].name; }

  const ModelPlan& plan_;
  uint64_t current_step_ = 0;
  std::optional<uint64_t> open_step_;
  uint32_t pending_ = 0;
  std::vector<Layer> layers_;
  std::vector<Shard> shards_;
};

}  // namespace luwu::client
