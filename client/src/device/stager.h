// Moves one layer between GPU memory and host memory through the staging rings: fetches come chunk
// by chunk from a function that fills host memory, pushes leave chunk by chunk to whoever asks for
// the next one. Copies run on two streams of the stager's own, so that the copy engines of both
// directions work beside each other and beside the caller's kernels.
//
// A fetch's copies wait on the GPU for what the caller's stream held when the call was made; a
// push's copies, too. The host never waits for the caller's stream: it asks for events of its own.
// When an operation ends with an error, nothing of it touches the caller's memory any more.
//
// Fetches come from one thread, pushes from one other; Cancel from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "client/src/device/chunks.h"
#include "client/src/device/device.h"
#include "client/src/device/staging_ring.h"
#include "common/base/clock.h"

namespace luwu::client {

struct StagerOptions {
  uint32_t slots = 4;  // of each direction, at least 2 (CHECKed)
  uint64_t slot_bytes = 0;
};

// One layer's transfer. What the spans name outlives the operation.
struct StagedLayer {
  std::span<const ShardRange> shards;
  std::span<const Segment> segments;  // prepared; GPU memory of the stager's device
  DType wire = DType::kUnspecified;
  cuda::Event ready = nullptr;  // recorded on the caller's stream
  TimePoint deadline;
};

// What a push has sent, in the wire's dtype: see kernel_math.h.
struct GradientCheck {
  double square_sum = 0;
  uint64_t non_finite = 0;
};

class Stager {
 public:
  static StatusOr<std::unique_ptr<Stager>> Make(const Device& device, StagerOptions options);
  ~Stager();

  const Device& device() const { return device_; }
  uint64_t pinned_bytes() const { return 2 * in_->slots() * in_->slot_bytes(); }

  // Fills sorted host segments, which hold parts of the layer.
  using Fill = std::function<Status(const std::vector<Segment>& segments)>;
  // On return all copies are on their way, and `arrived` happens when they have been made.
  Status Fetch(const StagedLayer& layer, const Fill& fill, cuda::Event arrived);

  // A push under way.
  class Push {
   public:
    // `scale` other than 1, and `check` (null: none), need the device's kernels (CHECKed).
    Push(Stager& stager, const StagedLayer& layer, float scale, GradientCheck* check);
    ~Push();
    Push(const Push&) = delete;
    Push& operator=(const Push&) = delete;

    // The next chunk in host memory; the one before it is no longer needed. False: that was all,
    // and the check is filled in. After an error only the destructor may be called.
    StatusOr<bool> Next(std::vector<Segment>* segments, Chunk* chunk);

   private:
    Status Start();
    Status StartNext();
    Status Copy(const ChunkPiece& piece, const StagingRing::Slot& slot);

    Stager& stager_;
    const StagedLayer layer_;
    const float scale_;
    GradientCheck* const check_;
    Chunks chunks_;
    bool started_ = false;
    size_t taken_ = 0;    // chunks that have begun
    size_t given_ = 0;    // ... that the caller has had
    bool ended_ = false;  // nothing is on its way
  };

  void Cancel();

 private:
  explicit Stager(const Device& device) : device_(device) {}
  // Of a push: a chunk that is being copied out, in a slot unless it is empty.
  struct OnItsWay {
    Chunk chunk;
    StagingRing::Slot* slot = nullptr;
  };
  Status FetchChunks(const StagedLayer& layer, const Fill& fill, cuda::Event arrived);
  Status CopyIn(const Chunk& chunk, const StagingRing::Slot& slot);

  const Device& device_;
  OwnedStream in_stream_;
  OwnedStream out_stream_;
  std::unique_ptr<StagingRing> in_;
  std::unique_ptr<StagingRing> out_;
  OwnedMemory partials_;         // of the push under way
  OwnedPinned pinned_partials_;  // where they come to
  // Working memory, used again.
  Chunk chunk_;
  std::vector<Segment> host_;
  std::vector<OnItsWay> window_;  // by chunk number modulo the number of slots
};

}  // namespace luwu::client
