// What the C functions on layers share: arguments checked, an operation under its handle. Used by
// the C ABI files only.
#pragma once

#include <memory>
#include <vector>

#include "client/include/luwu/luwu.h"
#include "client/src/c_structs.h"
#include "client/src/library.h"

namespace luwu::client {

inline StatusOr<std::shared_ptr<Session>> FindForLayer(luwu_session session, uint32_t layer) {
  ASSIGN_OR_RETURN(std::shared_ptr<Session> found, Library::Get().FindSession(session));
  RETURN_IF_ERROR(found->Health());
  RETURN_IF_ERROR(found->CheckLayer(layer));
  return found;
}

inline StatusOr<bool> ToClose(uint32_t flags) {
  if ((flags & ~LUWU_PUSH_CLOSE) == 0) return flags == LUWU_PUSH_CLOSE;
  return Error(ErrorCode::kInvalidArgument, "flags {:#x}: only LUWU_PUSH_CLOSE is known", flags);
}

// The caller's segments, checked and sorted.
struct SegmentArray {
  const luwu_segment* data = nullptr;
  uint32_t count = 0;
};
inline Status Prepare(const Session& session, uint32_t layer, const SegmentArray& in,
                      std::vector<Segment>* out) {
  RETURN_IF_ERROR(ToSegments(in.data, in.count, out));
  return PrepareSegments(session.spec().layers[layer], out);
}
inline Status PreparePush(const Session& session, uint32_t layer, const SegmentArray& in,
                          std::vector<Segment>* out) {
  const LayerSpec& spec = session.spec().layers[layer];
  if (!spec.trainable()) {
    return Error(ErrorCode::kInvalidArgument, "layer '{}' is frozen: it takes no gradient",
                 spec.name);
  }
  RETURN_IF_ERROR(Prepare(session, layer, in, out));
  return CheckCoverage(spec, *out);
}

// Starts an operation under a handle that exists first: once it runs, the caller must know it.
template <typename Kind = Operation, typename Start>
Status GiveOut(luwu_op* op, const Start& start) {
  const auto operation = std::make_shared<Kind>();
  ASSIGN_OR_RETURN(const luwu_op handle, Library::Get().operations().Add(operation));
  const Status started = start(operation);
  if (started.ok()) {
    *op = handle;
  } else {
    Library::Get().operations().Remove(handle);
  }
  return started;
}

}  // namespace luwu::client
