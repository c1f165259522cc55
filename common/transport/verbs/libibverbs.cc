// The table filled from libibverbs.so.1. The header's inline functions either go through the
// context's own table, which needs no library, or are done here with the symbol itself.
#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "common/transport/verbs/verbs_api.h"

namespace luwu::transport {
namespace {

int OrErrno(int result) { return result >= 0 ? result : errno; }

class Libibverbs final : public VerbsApi {
 public:
  Status Load() {
    library_ = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      return Error(ErrorCode::kUnsupported,
                   "this host has no libibverbs ({}); install libibverbs1 and ibverbs-providers",
                   ::dlerror());
    }
    Resolve("ibv_get_device_list", &get_device_list_);
    Resolve("ibv_free_device_list", &free_device_list_);
    Resolve("ibv_open_device", &open_device_);
    Resolve("ibv_close_device", &close_device_);
    Resolve("ibv_query_device", &query_device_);
    Resolve("ibv_query_port", &query_port_);
    Resolve("_ibv_query_gid_table", &query_gid_table_);
    Resolve("ibv_get_async_event", &get_async_event_);
    Resolve("ibv_ack_async_event", &ack_async_event_);
    Resolve("ibv_alloc_pd", &alloc_pd_);
    Resolve("ibv_dealloc_pd", &dealloc_pd_);
    Resolve("ibv_reg_mr", &reg_mr_);
    Resolve("ibv_dereg_mr", &dereg_mr_);
    Resolve("ibv_create_comp_channel", &create_comp_channel_);
    Resolve("ibv_destroy_comp_channel", &destroy_comp_channel_);
    Resolve("ibv_create_cq", &create_cq_);
    Resolve("ibv_destroy_cq", &destroy_cq_);
    Resolve("ibv_get_cq_event", &get_cq_event_);
    Resolve("ibv_ack_cq_events", &ack_cq_events_);
    Resolve("ibv_create_srq", &create_srq_);
    Resolve("ibv_modify_srq", &modify_srq_);
    Resolve("ibv_destroy_srq", &destroy_srq_);
    Resolve("ibv_create_qp", &create_qp_);
    Resolve("ibv_modify_qp", &modify_qp_);
    Resolve("ibv_query_qp", &query_qp_);
    Resolve("ibv_destroy_qp", &destroy_qp_);
    if (missing_.empty()) return OkStatus();
    return Error(ErrorCode::kUnsupported, "libibverbs of this host is too old: it has no {}",
                 missing_);
  }

  ibv_device** GetDeviceList(int* count) override { return get_device_list_(count); }
  void FreeDeviceList(ibv_device** list) override { free_device_list_(list); }
  ibv_context* OpenDevice(ibv_device* device) override { return open_device_(device); }
  int CloseDevice(ibv_context* context) override { return OrErrno(close_device_(context)); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    return OrErrno(query_device_(context, attr));
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    std::memset(attr, 0, sizeof *attr);  // the symbol fills the fields of its first version
    return OrErrno(query_port_(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attr)));
  }
  int QueryGids(ibv_context* context, std::span<ibv_gid_entry> entries) override {
    return static_cast<int>(
        query_gid_table_(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry)));
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return OrErrno(get_async_event_(context, event));
  }
  void AckAsyncEvent(ibv_async_event* event) override { ack_async_event_(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return alloc_pd_(context); }
  int DeallocPd(ibv_pd* pd) override { return OrErrno(dealloc_pd_(pd)); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, uint64_t bytes, unsigned access) override {
    return reg_mr_(pd, address, bytes, static_cast<int>(access));
  }
  int DeregMr(ibv_mr* mr) override { return OrErrno(dereg_mr_(mr)); }
  ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) override { return ibv_alloc_mw(pd, type); }
  int DeallocMw(ibv_mw* mw) override { return OrErrno(ibv_dealloc_mw(mw)); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return create_comp_channel_(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return OrErrno(destroy_comp_channel_(channel));
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return create_cq_(context, entries, nullptr, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return OrErrno(destroy_cq_(cq)); }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* context = nullptr;
    return OrErrno(get_cq_event_(channel, cq, &context));
  }
  void AckCqEvents(ibv_cq* cq, unsigned count) override { ack_cq_events_(cq, count); }
  int ReqNotifyCq(ibv_cq* cq) override { return OrErrno(ibv_req_notify_cq(cq, 0)); }
  int PollCq(ibv_cq* cq, std::span<ibv_wc> completions) override {
    return ibv_poll_cq(cq, static_cast<int>(completions.size()), completions.data());
  }

  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override { return create_srq_(pd, attr); }
  int ModifySrq(ibv_srq* srq, ibv_srq_attr* attr, int mask) override {
    return OrErrno(modify_srq_(srq, attr, mask));
  }
  int DestroySrq(ibv_srq* srq) override { return OrErrno(destroy_srq_(srq)); }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) override {
    return OrErrno(ibv_post_srq_recv(srq, wr, bad));
  }

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override { return create_qp_(pd, attr); }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    return OrErrno(modify_qp_(qp, attr, mask));
  }
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    ibv_qp_init_attr init = {};
    return OrErrno(query_qp_(qp, attr, mask, &init));
  }
  int DestroyQp(ibv_qp* qp) override { return OrErrno(destroy_qp_(qp)); }
  int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) override {
    return OrErrno(ibv_post_send(qp, wr, bad));
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) override {
    return OrErrno(ibv_post_recv(qp, wr, bad));
  }

 private:
  template <typename Function>
  void Resolve(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }

  void* library_ = nullptr;  // never closed: providers register themselves with it
  std::string missing_;
  decltype(&::ibv_get_device_list) get_device_list_ = nullptr;
  decltype(&::ibv_free_device_list) free_device_list_ = nullptr;
  decltype(&::ibv_open_device) open_device_ = nullptr;
  decltype(&::ibv_close_device) close_device_ = nullptr;
  decltype(&::ibv_query_device) query_device_ = nullptr;
  int (*query_port_)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  decltype(&::_ibv_query_gid_table) query_gid_table_ = nullptr;
  decltype(&::ibv_get_async_event) get_async_event_ = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event_ = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd_ = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd_ = nullptr;
  ibv_mr* (*reg_mr_)(ibv_pd*, void*, size_t, int) = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr_ = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel_ = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel_ = nullptr;
  decltype(&::ibv_create_cq) create_cq_ = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq_ = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event_ = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events_ = nullptr;
  decltype(&::ibv_create_srq) create_srq_ = nullptr;
  decltype(&::ibv_modify_srq) modify_srq_ = nullptr;
  decltype(&::ibv_destroy_srq) destroy_srq_ = nullptr;
  decltype(&::ibv_create_qp) create_qp_ = nullptr;
  decltype(&::ibv_modify_qp) modify_qp_ = nullptr;
  decltype(&::ibv_query_qp) query_qp_ = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp_ = nullptr;
};

}  // namespace

StatusOr<VerbsApi*> LoadLibibverbs() {
  static Libibverbs library;
  static const Status status = library.Load();
  RETURN_IF_ERROR(status);
  return &library;
}

}  // namespace luwu::transport
