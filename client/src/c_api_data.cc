// luwu.h: fetches, pushes, operations.
#include <algorithm>
#include <utility>

#include "client/include/luwu/luwu.h"
#include "client/src/c_api_layer.h"
#include "client/src/c_structs.h"
#include "client/src/library.h"

namespace {

using luwu::DeadlineAfter;
using luwu::Error;
using luwu::ErrorCode;
using luwu::OkStatus;
using luwu::Status;
using luwu::StatusOr;
using luwu::client::FindForLayer;
using luwu::client::GiveOut;
using luwu::client::Guarded;
using luwu::client::GuardedIn;
using luwu::client::InPlaceOperation;
using luwu::client::Library;
using luwu::client::Operation;
using luwu::client::Prepare;
using luwu::client::PreparePush;
using luwu::client::Segment;
using luwu::client::ToClose;

constexpr uint32_t kPiecesMax = 4096;

// Takes the result of a finished operation and ends its handle.
Status TakeResult(luwu_op op) {
  const std::shared_ptr<Operation> operation = Library::Get().operations().Remove(op);
  if (operation != nullptr) {
    const Status result = operation->result();
    return result.ok() ? operation->Deliver() : result;
  }
  return Library::Get().FindOperation(op).status();  // another thread was faster
}

// An operation whose in-place push was not ended can only be waited for in vain.
Status CheckEnded(Operation& operation) {
  auto* in_place = dynamic_cast<InPlaceOperation*>(&operation);
  if (in_place == nullptr || in_place->ended() || operation.done()) return OkStatus();
  const Status health = in_place->session().Health();
  if (health.ok()) {
    return Error(ErrorCode::kState, "call luwu_push_inplace_end first: nothing was sent yet");
  }
  operation.Finish(in_place->session().Explain(health));
  return OkStatus();
}

}  // namespace

extern "C" {

int32_t luwu_fetch(luwu_session session, uint32_t layer, uint64_t version,
                   const luwu_segment* segments, uint32_t segment_count, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    const auto context = found->fetch().TakeContext();
    RETURN_IF_ERROR(Prepare(*found, layer, {segments, segment_count}, &context->segments));
    return found->fetch().Fetch({layer, version, DeadlineAfter(timeout_ms)}, *context);
  });
}

int32_t luwu_fetch_async(luwu_session session, uint32_t layer, uint64_t version,
                         const luwu_segment* segments, uint32_t segment_count, uint32_t timeout_ms,
                         luwu_op* op) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(op, "op"));
    *op = 0;
    std::vector<Segment> prepared;
    RETURN_IF_ERROR(Prepare(*found, layer, {segments, segment_count}, &prepared));
    const luwu::client::FetchCall call{layer, version, DeadlineAfter(timeout_ms)};
    return GiveOut(op, [&](const std::shared_ptr<Operation>& operation) {
      return found->StartFetch(operation, call, std::move(prepared));
    });
  });
}

int32_t luwu_fetch_view(luwu_session session, uint32_t layer, uint64_t version,
                        luwu_view_piece* pieces, uint32_t* piece_count, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(piece_count, "piece_count"));
    const auto needed = static_cast<uint32_t>(found->fetch().ViewPieces(layer));
    const uint32_t capacity = std::exchange(*piece_count, needed);
    if (capacity < needed || pieces == nullptr) {
      return Error(ErrorCode::kInvalidArgument, "the view has {} pieces, there is room for {}",
                   needed, pieces == nullptr ? 0 : capacity);
    }
    const auto context = found->fetch().TakeContext();
    RETURN_IF_ERROR(found->fetch().View({layer, version, DeadlineAfter(timeout_ms)}, *context,
                                        &context->view_pieces));
    for (uint32_t i = 0; i < needed; ++i) {
      const luwu::client::ViewPiece& piece = context->view_pieces[i];
      pieces[i] = {piece.data, piece.range.first, piece.range.elements};
    }
    return OkStatus();
  });
}

int32_t luwu_push(luwu_session session, uint32_t layer, const luwu_segment* segments,
                  uint32_t segment_count, uint32_t flags, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    ASSIGN_OR_RETURN(const bool close, ToClose(flags));
    const auto context = found->push().TakeContext();
    RETURN_IF_ERROR(
        PreparePush(*found, layer, {segments, segment_count}, &context->batch.segments));
    return found->push().Push(
        {.layer = layer, .close = close, .deadline = DeadlineAfter(timeout_ms)}, *context);
  });
}

int32_t luwu_push_async(luwu_session session, uint32_t layer, const luwu_segment* segments,
                        uint32_t segment_count, uint32_t flags, uint32_t timeout_ms, luwu_op* op) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(op, "op"));
    *op = 0;
    ASSIGN_OR_RETURN(const bool close, ToClose(flags));
    std::vector<Segment> prepared;
    RETURN_IF_ERROR(PreparePush(*found, layer, {segments, segment_count}, &prepared));
    const luwu::client::PushCall call{
        .layer = layer, .close = close, .deadline = DeadlineAfter(timeout_ms)};
    return GiveOut(op, [&](const std::shared_ptr<Operation>& operation) {
      return found->StartPush(operation, call, std::move(prepared));
    });
  });
}

int32_t luwu_close_layer(luwu_session session, uint32_t layer, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    const auto context = found->push().TakeContext();
    return found->push().CloseLayer(
        {.layer = layer, .close = true, .deadline = DeadlineAfter(timeout_ms)}, *context);
  });
}

int32_t luwu_push_inplace_begin(luwu_session session, uint32_t layer, uint64_t offset,
                                luwu_slot_piece* pieces, uint32_t* piece_count, uint32_t flags,
                                uint32_t timeout_ms, luwu_op* op) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, FindForLayer(session, layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(op, "op"));
    *op = 0;
    RETURN_IF_ERROR(luwu::client::CheckOut(pieces, "pieces"));
    RETURN_IF_ERROR(luwu::client::CheckOut(piece_count, "piece_count"));
    ASSIGN_OR_RETURN(const bool close, ToClose(flags));
    const uint32_t capacity = std::min(std::exchange(*piece_count, 0), kPiecesMax);
    if (capacity == 0) {
      return Error(ErrorCode::kInvalidArgument, "*piece_count is 0: there is room for no piece");
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<InPlaceOperation> operation,
                     found->BeginInPlace({.layer = layer,
                                          .close = close,
                                          .offset = offset,
                                          .pieces_max = capacity,
                                          .timeout_ms = timeout_ms}));
    const StatusOr<luwu_op> handle = Library::Get().operations().Add(operation);
    if (!handle.ok()) found->AbandonInPlace(*operation);
    RETURN_IF_ERROR(handle.status());
    const uint64_t width = luwu::DTypeBytes(found->spec().gradient_dtype);
    for (const auto& piece : operation->run().pieces) {
      pieces[(*piece_count)++] = {piece.payload.data(), piece.shard->range.first,
                                  piece.payload.size() / width};
    }
    *op = *handle;
    return OkStatus();
  });
}

int32_t luwu_push_inplace_end(luwu_op op) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, Library::Get().FindOperation(op));
    const auto in_place = std::dynamic_pointer_cast<InPlaceOperation>(operation);
    if (in_place == nullptr) {
      return Error(ErrorCode::kBadHandle, "{:#x} is not from luwu_push_inplace_begin", op);
    }
    if (!in_place->TryEnd()) {
      return Error(ErrorCode::kState, "luwu_push_inplace_end was called before");
    }
    in_place->session().EndInPlace(in_place);
    return OkStatus();
  });
}

int32_t luwu_wait(luwu_op op, uint32_t timeout_ms) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, Library::Get().FindOperation(op));
    RETURN_IF_ERROR(CheckEnded(*operation));
    if (operation->WaitUntil(DeadlineAfter(timeout_ms))) return TakeResult(op);
    return Error(ErrorCode::kDeadline, "the operation is not done after {} ms", timeout_ms);
  });
}

int32_t luwu_test(luwu_op op) {
  bool in_progress = false;
  const int32_t result = Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, Library::Get().FindOperation(op));
    RETURN_IF_ERROR(CheckEnded(*operation));
    in_progress = !operation->done();
    return in_progress ? OkStatus() : TakeResult(op);
  });
  return in_progress ? LUWU_IN_PROGRESS : result;
}

}  // extern "C"
