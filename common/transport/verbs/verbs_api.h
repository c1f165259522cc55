// The verbs that the transport uses, as a table: libibverbs fills it at run time (so that programs
// start on hosts without it), tests put a fake in its place. Each function does what the verb of
// its name does (man 3 ibv_...). Made uniform: those that return int return 0 or an errno value;
// those that return a pointer return null and set errno.
//
// Thread-safe as verbs are. Only this folder and the fake include <infiniband/verbs.h>.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"

namespace luwu::transport {

class VerbsApi {
 public:
  virtual ~VerbsApi() = default;

  virtual ibv_device** GetDeviceList(int* count) = 0;
  virtual void FreeDeviceList(ibv_device** list) = 0;
  virtual ibv_context* OpenDevice(ibv_device* device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attr) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) = 0;
  // The number of valid entries of all ports, or a negative errno.
  virtual int QueryGids(ibv_context* context, std::span<ibv_gid_entry> entries) = 0;
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, uint64_t bytes, unsigned access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;
  virtual ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) = 0;
  virtual int DeallocMw(ibv_mw* mw) = 0;

  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned count) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq) = 0;
  // The number of completions taken, or negative.
  virtual int PollCq(ibv_cq* cq, std::span<ibv_wc> completions) = 0;

  virtual ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) = 0;
  virtual int ModifySrq(ibv_srq* srq, ibv_srq_attr* attr, int mask) = 0;
  virtual int DestroySrq(ibv_srq* srq) = 0;
  virtual int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) = 0;

  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) = 0;
  virtual int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) = 0;
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) = 0;
};

// libibverbs of this host, loaded once and kept. kUnsupported, saying which package is missing, on
// a host without it.
StatusOr<VerbsApi*> LoadLibibverbs();

// "remote access error": what a completion's status means.
std::string CompletionText(ibv_wc_status status);
// "port error"
std::string EventText(ibv_event_type type);

}  // namespace luwu::transport
