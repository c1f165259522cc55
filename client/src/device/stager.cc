#include "client/src/device/stager.h"

#include <cstring>
#include <utility>

#include "client/src/device/kernel_math.h"
#include "common/base/check.h"

namespace luwu::client {
namespace {

constexpr uint64_t kPartialBytes = kernels::kBlocks * sizeof(kernels::Partial);

}  // namespace

StatusOr<std::unique_ptr<Stager>> Stager::Make(const Device& device, StagerOptions options) {
  LUWU_CHECK(options.slots >= 2, "one slot is filled while the other is copied");
  std::unique_ptr<Stager> stager(new Stager(device));
  ASSIGN_OR_RETURN(stager->in_stream_, device.MakeStream());
  ASSIGN_OR_RETURN(stager->out_stream_, device.MakeStream());
  ASSIGN_OR_RETURN(stager->in_, StagingRing::Make(device, options.slots, options.slot_bytes));
  ASSIGN_OR_RETURN(stager->out_, StagingRing::Make(device, options.slots, options.slot_bytes));
  if (device.has_kernels()) {
    ASSIGN_OR_RETURN(stager->partials_, device.Allocate(kPartialBytes));
    ASSIGN_OR_RETURN(stager->pinned_partials_, device.AllocatePinned(kPartialBytes));
  }
  stager->window_.resize(options.slots);
  return stager;
}

Stager::~Stager() {
  if (in_stream_.get() != nullptr) device_.Drain(in_stream_.get());
  if (out_stream_.get() != nullptr) device_.Drain(out_stream_.get());
}

void Stager::Cancel() {
  in_->Cancel();
  out_->Cancel();
}

// ---- fetch --------------------------------------------------------------------------------------

Status Stager::Fetch(const StagedLayer& layer, const Fill& fill, cuda::Event arrived) {
  const Status status = FetchChunks(layer, fill, arrived);
  if (!status.ok()) device_.Drain(in_stream_.get());
  return status;
}

Status Stager::FetchChunks(const StagedLayer& layer, const Fill& fill, cuda::Event arrived) {
  RETURN_IF_ERROR(device_.Wait(in_stream_.get(), layer.ready));
  Chunks chunks(layer.shards, layer.segments,
                {layer.wire, device_.has_kernels(), in_->slot_bytes()});
  while (!chunks.done()) {
    chunks.Next(&chunk_);
    if (chunk_.pieces.empty()) continue;
    ASSIGN_OR_RETURN(StagingRing::Slot* const slot, in_->Take(layer.deadline));
    ToHostSegments(chunk_, slot->pinned, &host_);
    RETURN_IF_ERROR(fill(host_));
    RETURN_IF_ERROR(CopyIn(chunk_, *slot));
    RETURN_IF_ERROR(in_->Seal(*slot, in_stream_.get()));
  }
  return device_.Record(arrived, in_stream_.get());
}

Status Stager::CopyIn(const Chunk& chunk, const StagingRing::Slot& slot) {
  const cuda::Stream stream = in_stream_.get();
  for (const ChunkPiece& piece : chunk.pieces) {
    const ByteSpan pinned = slot.pinned.subspan(piece.slot_offset, piece.slot_bytes());
    if (piece.slot_dtype == piece.device_dtype) {
      RETURN_IF_ERROR(device_.CopyIn(piece.device, pinned, stream));
      continue;
    }
    const cuda::Address staged = slot.device + piece.slot_offset;
    RETURN_IF_ERROR(device_.CopyIn(staged, pinned, stream));
    RETURN_IF_ERROR(device_.Unpack(
        {piece.slot_dtype, staged, piece.device_dtype, piece.device, piece.count}, stream));
  }
  return OkStatus();
}

// ---- push ---------------------------------------------------------------------------------------

Stager::Push::Push(Stager& stager, const StagedLayer& layer, float scale, GradientCheck* check)
    : stager_(stager),
      layer_(layer),
      scale_(scale),
      check_(check),
      chunks_(layer.shards, layer.segments,
              {layer.wire, stager.device_.has_kernels(), stager.out_->slot_bytes()}) {
  LUWU_CHECK((scale == 1.0f && check == nullptr) || stager.device_.has_kernels(),
             "the caller has asked whether there are kernels");
}

// The gradient is the caller's again: no copy may still read it.
Stager::Push::~Push() {
  if (!ended_) stager_.device_.Drain(stager_.out_stream_.get());
}

Status Stager::Push::Start() {
  const cuda::Stream stream = stager_.out_stream_.get();
  RETURN_IF_ERROR(stager_.device_.Wait(stream, layer_.ready));
  started_ = true;
  if (check_ == nullptr) return OkStatus();
  return stager_.device_.Zero(stager_.partials_.get(), kPartialBytes, stream);
}

Status Stager::Push::Copy(const ChunkPiece& piece, const StagingRing::Slot& slot) {
  const cuda::Stream stream = stager_.out_stream_.get();
  const ByteSpan pinned = slot.pinned.subspan(piece.slot_offset, piece.slot_bytes());
  const bool plain = piece.slot_dtype == piece.device_dtype && scale_ == 1.0f && check_ == nullptr;
  if (plain) return stager_.device_.CopyOut(pinned, piece.device, stream);
  const cuda::Address staged = slot.device + piece.slot_offset;
  RETURN_IF_ERROR(stager_.device_.Pack(
      {piece.device_dtype, piece.device, piece.slot_dtype, staged, piece.count}, scale_,
      stager_.partials_.get(), stream));
  return stager_.device_.CopyOut(pinned, staged, stream);
}

Status Stager::Push::StartNext() {
  OnItsWay& next = stager_.window_[taken_ % stager_.window_.size()];
  chunks_.Next(&next.chunk);
  next.slot = nullptr;
  if (!next.chunk.pieces.empty() || chunks_.done()) {
    ASSIGN_OR_RETURN(next.slot, stager_.out_->Take(layer_.deadline));
    for (const ChunkPiece& piece : next.chunk.pieces) RETURN_IF_ERROR(Copy(piece, *next.slot));
    if (chunks_.done() && check_ != nullptr) {
      RETURN_IF_ERROR(stager_.device_.CopyOut(
          {static_cast<std::byte*>(stager_.pinned_partials_.get()), kPartialBytes},
          stager_.partials_.get(), stager_.out_stream_.get()));
    }
    RETURN_IF_ERROR(stager_.out_->Seal(*next.slot, stager_.out_stream_.get()));
  }
  ++taken_;
  return OkStatus();
}

StatusOr<bool> Stager::Push::Next(std::vector<Segment>* segments, Chunk* chunk) {
  if (!started_) RETURN_IF_ERROR(Start());
  // The chunk before is done with; its slot may be used again as the last of the turn.
  while (!chunks_.done() && taken_ - given_ < stager_.window_.size()) RETURN_IF_ERROR(StartNext());
  if (given_ == taken_) {
    ended_ = true;
    if (check_ != nullptr) {
      kernels::Partial partials[kernels::kBlocks];
      std::memcpy(partials, stager_.pinned_partials_.get(), kPartialBytes);
      *check_ = {};
      for (const kernels::Partial& partial : partials) {
        check_->square_sum += partial.square_sum;
        check_->non_finite += partial.non_finite;
      }
    }
    return false;
  }
  OnItsWay& next = stager_.window_[given_ % stager_.window_.size()];
  if (next.slot != nullptr) {
    RETURN_IF_ERROR(stager_.out_->Await(*next.slot, layer_.deadline));
    ToHostSegments(next.chunk, next.slot->pinned, segments);
  } else {
    segments->clear();
  }
  std::swap(*chunk, next.chunk);
  ++given_;
  return true;
}

}  // namespace luwu::client
