#include "common/transport/verbs/handles.h"

#include <sys/resource.h>

#include <cerrno>

#include "common/base/log.h"
#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

Status VerbFailed(const char* verb, int error) {
  const bool exhausted = error == ENOMEM || error == EMFILE || error == ENOSPC || error == EAGAIN;
  return Error(exhausted ? ErrorCode::kResourceExhausted : ErrorCode::kInternal, "{} failed: {}",
               verb, ErrnoText(error));
}

void LogLeak(const char* verb, int error) {
  if (error != 0) LogError("verbs_leak", "verb={} why=\"{}\"", verb, ErrnoText(error));
}

Status RegistrationFailed(uint64_t bytes, int error) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (error == ENOMEM && limit.rlim_cur != RLIM_INFINITY) {
    return Error(ErrorCode::kResourceExhausted,
                 "registering {} for RDMA failed: the limit of locked memory is {}; set "
                 "LimitMEMLOCK=infinity in the unit of the service, or run `ulimit -l unlimited` "
                 "(containers: --ulimit memlock=-1)",
                 HumanBytes(bytes), HumanBytes(limit.rlim_cur));
  }
  return Annotate(VerbFailed("ibv_reg_mr", error),
                  fmt::format("registering {} for RDMA", HumanBytes(bytes)));
}

}  // namespace

StatusOr<ContextHandle> OpenContext(VerbsApi* api, ibv_device* device) {
  ibv_context* context = api->OpenDevice(device);
  if (context == nullptr) return VerbFailed("ibv_open_device", errno);
  return ContextHandle(
      context, [api](ibv_context* raw) { LogLeak("ibv_close_device", api->CloseDevice(raw)); });
}

StatusOr<PdHandle> AllocPd(VerbsApi* api, const ContextHandle& context) {
  ibv_pd* pd = api->AllocPd(context.get());
  if (pd == nullptr) return VerbFailed("ibv_alloc_pd", errno);
  return PdHandle(pd,
                  [api, context](ibv_pd* raw) { LogLeak("ibv_dealloc_pd", api->DeallocPd(raw)); });
}

StatusOr<MrHandle> RegisterMemory(VerbsApi* api, const PdHandle& pd, void* address, uint64_t bytes,
                                  unsigned access) {
  ibv_mr* mr = api->RegMr(pd.get(), address, bytes, access);
  if (mr == nullptr) return RegistrationFailed(bytes, errno);
  return MrHandle(mr, [api, pd](ibv_mr* raw) { LogLeak("ibv_dereg_mr", api->DeregMr(raw)); });
}

StatusOr<MwHandle> AllocWindow(VerbsApi* api, const PdHandle& pd, const MrHandle& mr) {
  ibv_mw* mw = api->AllocMw(pd.get(), IBV_MW_TYPE_2);
  if (mw == nullptr) return VerbFailed("ibv_alloc_mw", errno);
  return MwHandle(mw,
                  [api, pd, mr](ibv_mw* raw) { LogLeak("ibv_dealloc_mw", api->DeallocMw(raw)); });
}

StatusOr<ChannelHandle> MakeChannel(VerbsApi* api, const ContextHandle& context) {
  ibv_comp_channel* channel = api->CreateCompChannel(context.get());
  if (channel == nullptr) return VerbFailed("ibv_create_comp_channel", errno);
  return ChannelHandle(channel, [api, context](ibv_comp_channel* raw) {
    LogLeak("ibv_destroy_comp_channel", api->DestroyCompChannel(raw));
  });
}

StatusOr<CqHandle> MakeCq(VerbsApi* api, const ContextHandle& context, const ChannelHandle& channel,
                          uint32_t entries) {
  ibv_cq* cq = api->CreateCq(context.get(), static_cast<int>(entries), channel.get());
  if (cq == nullptr) return VerbFailed("ibv_create_cq", errno);
  return CqHandle(cq,
                  [api, channel](ibv_cq* raw) { LogLeak("ibv_destroy_cq", api->DestroyCq(raw)); });
}

StatusOr<SrqHandle> MakeSrq(VerbsApi* api, const PdHandle& pd, uint32_t entries) {
  ibv_srq_init_attr attr = {};
  attr.attr.max_wr = entries;
  attr.attr.max_sge = 1;
  ibv_srq* srq = api->CreateSrq(pd.get(), &attr);
  if (srq == nullptr) return VerbFailed("ibv_create_srq", errno);
  return SrqHandle(srq,
                   [api, pd](ibv_srq* raw) { LogLeak("ibv_destroy_srq", api->DestroySrq(raw)); });
}

StatusOr<QpHandle> MakeQp(VerbsApi* api, const PdHandle& pd, QpShape* shape) {
  ibv_qp_init_attr attr = {};
  attr.send_cq = attr.recv_cq = shape->cq.get();
  attr.srq = shape->srq.get();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = shape->sends;
  attr.cap.max_recv_wr = shape->srq == nullptr ? shape->receives : 0;
  attr.cap.max_send_sge = shape->sges;
  attr.cap.max_recv_sge = shape->srq == nullptr ? 1 : 0;
  attr.cap.max_inline_data = shape->inline_bytes;
  ibv_qp* qp = api->CreateQp(pd.get(), &attr);
  if (qp == nullptr && shape->inline_bytes > 0) {  // more than this device can
    attr.cap.max_inline_data = 0;
    qp = api->CreateQp(pd.get(), &attr);
  }
  if (qp == nullptr) return VerbFailed("ibv_create_qp", errno);
  shape->inline_bytes = attr.cap.max_inline_data;
  return QpHandle(qp, [api, pd, cq = shape->cq, srq = shape->srq](ibv_qp* raw) {
    LogLeak("ibv_destroy_qp", api->DestroyQp(raw));
  });
}

}  // namespace luwu::transport
