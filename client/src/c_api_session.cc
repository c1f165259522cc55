// luwu.h: sessions, loading and reading, steps, status.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "client/include/luwu/luwu.h"
#include "client/src/c_structs.h"
#include "client/src/library.h"

namespace {

using luwu::DeadlineAfter;
using luwu::Error;
using luwu::ErrorCode;
using luwu::OkStatus;
using luwu::Status;
using luwu::client::Guarded;
using luwu::client::GuardedIn;
using luwu::client::Library;

void CopyText(const std::string& text, char* buffer, uint64_t capacity) {
  const uint64_t bytes = std::min<uint64_t>(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), bytes);
  buffer[bytes] = '\0';
}

}  // namespace

extern "C" {

int32_t luwu_session_open(const luwu_open_options* options, luwu_session* session) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(luwu::client::CheckOut(session, "session"));
    *session = 0;
    RETURN_IF_ERROR(Library::Get().CheckReady());
    ASSIGN_OR_RETURN(luwu::client::OpenOptions open, luwu::client::ToOpenOptions(options));
    ASSIGN_OR_RETURN(std::shared_ptr<luwu::client::Session> opened,
                     luwu::client::OpenSession(open));
    luwu::StatusOr<luwu::client::Handle> handle = Library::Get().sessions().Add(opened);
    constexpr bool kFarewell = true;
    if (!handle.ok()) opened->Close(kFarewell);
    RETURN_IF_ERROR(handle.status());
    *session = *handle;
    return OkStatus();
  });
}

int32_t luwu_session_close(luwu_session session) {
  return Guarded([&]() -> Status {
    const auto removed = Library::Get().sessions().Remove(session);
    if (removed == nullptr) return Library::Get().FindSession(session).status();
    constexpr bool kFarewell = true;
    removed->Close(kFarewell);
    return OkStatus();
  });
}

int32_t luwu_session_get_info(luwu_session session, luwu_session_info* info) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    RETURN_IF_ERROR(luwu::client::CheckStruct(info, "info"));
    const luwu::client::SessionInfo values = found->Info();
    luwu_session_info out = {};
    out.nodes = values.nodes;
    out.current_step = values.current_step;
    out.fetched_bytes = values.fetched_bytes;
    out.pushed_bytes = values.pushed_bytes;
    out.retries = values.retries;
    out.created = values.created;
    out.loaded = values.loaded;
    out.shm_nodes = values.shm_nodes;
    out.operations = values.operations;
    out.loss_scale = found->step().loss_scale();
    out.rolled_back_step_plus_1 = values.rolled_back_step ? *values.rolled_back_step + 1 : 0;
    luwu::client::CopyOut(out, info);
    return OkStatus();
  });
}

int32_t luwu_load(luwu_session session, uint32_t layer, uint64_t offset, const float* values,
                  uint64_t count, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    RETURN_IF_ERROR(found->Health());
    RETURN_IF_ERROR(found->CheckLayer(layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(values, "values"));
    return found->tensors().Load({layer, offset}, {values, count}, DeadlineAfter(timeout_ms));
  });
}

int32_t luwu_finish_load(luwu_session session, uint32_t allow_missing, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    if (allow_missing > 1) {
      return Error(ErrorCode::kInvalidArgument, "allow_missing is {}; it must be 0 or 1",
                   allow_missing);
    }
    return found->FinishLoad(allow_missing == 1, DeadlineAfter(timeout_ms));
  });
}

int32_t luwu_wait_loaded(luwu_session session, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    RETURN_IF_ERROR(found->Health());
    return found->AwaitLoaded(DeadlineAfter(timeout_ms));
  });
}

int32_t luwu_read(luwu_session session, uint32_t layer, int32_t quantity, uint64_t offset,
                  float* values, uint64_t count, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    RETURN_IF_ERROR(found->Health());
    RETURN_IF_ERROR(found->CheckLayer(layer));
    RETURN_IF_ERROR(luwu::client::CheckOut(values, "values"));
    if (quantity < LUWU_MASTER || quantity > LUWU_MOMENT3) {
      return Error(ErrorCode::kInvalidArgument, "quantity is {}; it must be 1 to 4", quantity);
    }
    return found->tensors().Read({layer, offset}, static_cast<luwu::client::ReadQuantity>(quantity),
                                 {values, count}, DeadlineAfter(timeout_ms));
  });
}

int32_t luwu_begin_step(luwu_session session, uint64_t step, const luwu_hyper* groups,
                        uint32_t group_count, uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    ASSIGN_OR_RETURN(const auto values, luwu::client::ToGroups(groups, group_count));
    return found->step().Begin(step, values, DeadlineAfter(timeout_ms));
  });
}

int32_t luwu_commit(luwu_session session, uint64_t step, luwu_commit_result* result,
                    uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    RETURN_IF_ERROR(luwu::client::CheckStruct(result, "result"));
    ASSIGN_OR_RETURN(const luwu::client::CommitReply reply,
                     found->step().Commit(step, DeadlineAfter(timeout_ms)));
    luwu_commit_result out = {};
    out.outcome = static_cast<int32_t>(reply.outcome);
    out.durability = static_cast<int32_t>(reply.durability);
    CopyText(reply.culprit, out.culprit, sizeof out.culprit);
    out.grad_norm = reply.grad_norm;
    out.clip_factor = reply.clip_factor;
    out.loss_scale = reply.loss_scale;
    luwu::client::CopyOut(out, result);
    return OkStatus();
  });
}

int32_t luwu_status_json(luwu_session session, char* buffer, uint64_t capacity,
                         uint32_t timeout_ms) {
  return GuardedIn(session, [&]() -> Status {
    ASSIGN_OR_RETURN(const auto found, Library::Get().FindSession(session));
    if (buffer == nullptr || capacity == 0) {
      return Error(ErrorCode::kInvalidArgument, "buffer is NULL or has no room");
    }
    CopyText(found->StatusJson(DeadlineAfter(timeout_ms)), buffer, capacity);
    return OkStatus();
  });
}

}  // extern "C"
