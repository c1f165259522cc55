// Owning handles of verbs objects. Each keeps its parents alive (the deleter holds them), so a
// child cannot outlive what it was made from, in whatever order the handles are dropped.
// Destruction that fails is logged: it is a defect of ours.
//
// Any thread. Making one fails with kResourceExhausted (limits, memory) or kInternal, and says
// which verb failed and why.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/transport/verbs/verbs_api.h"

namespace luwu::transport {

using ContextHandle = std::shared_ptr<ibv_context>;
using PdHandle = std::shared_ptr<ibv_pd>;
using MrHandle = std::shared_ptr<ibv_mr>;
using MwHandle = std::shared_ptr<ibv_mw>;
using ChannelHandle = std::shared_ptr<ibv_comp_channel>;
using CqHandle = std::shared_ptr<ibv_cq>;
using SrqHandle = std::shared_ptr<ibv_srq>;
using QpHandle = std::shared_ptr<ibv_qp>;

StatusOr<ContextHandle> OpenContext(VerbsApi* api, ibv_device* device);
StatusOr<PdHandle> AllocPd(VerbsApi* api, const ContextHandle& context);
// The memory must stay mapped until the handle is gone. Without room under RLIMIT_MEMLOCK the error
// says how many bytes were needed and how to raise the limit.
StatusOr<MrHandle> RegisterMemory(VerbsApi* api, const PdHandle& pd, void* address, uint64_t bytes,
                                  unsigned access);
// A window of type 2, not bound; `mr` is what it will be bound to.
StatusOr<MwHandle> AllocWindow(VerbsApi* api, const PdHandle& pd, const MrHandle& mr);
StatusOr<ChannelHandle> MakeChannel(VerbsApi* api, const ContextHandle& context);
StatusOr<CqHandle> MakeCq(VerbsApi* api, const ContextHandle& context, const ChannelHandle& channel,
                          uint32_t entries);
StatusOr<SrqHandle> MakeSrq(VerbsApi* api, const PdHandle& pd, uint32_t entries);

struct QpShape {
  CqHandle cq;
  SrqHandle srq;  // null: a receive queue of its own
  uint32_t sends = 0;
  uint32_t receives = 0;  // without srq
  uint32_t sges = 1;
  uint32_t inline_bytes = 0;  // on return: what the device gives
};
StatusOr<QpHandle> MakeQp(VerbsApi* api, const PdHandle& pd, QpShape* shape);

}  // namespace luwu::transport
