// A fabric of RDMA devices in memory, behind the verbs table: both ends of a link in one process.
// It enforces what a NIC enforces (protection domains, keys, bounds, kinds of access, windows bound
// to a queue pair, queue pair states, posted receives, children before parents) and can be made to
// fail in the ways that NICs and networks fail. Work is done inside PostSend.
//
// Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/transport/verbs/verbs_api.h"

namespace luwu::transport {

struct FakeDeviceShape {
  std::string name = "fake0";
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  bool ethernet = true;
  bool windows = true;
  bool shared_receives = true;
  bool port_active = true;
  uint32_t inline_max = 256;
  std::vector<std::string> gids = {"fe80::1", "::ffff:10.1.0.1"};  // all RoCE v2
};

class FakeVerbs final : public VerbsApi {
 public:
  explicit FakeVerbs(std::vector<FakeDeviceShape> devices = {FakeDeviceShape()});
  ~FakeVerbs() override;

  // ---- what tests see and do -------------------------------------------------------------------
  struct Counts {
    int contexts = 0, pds = 0, mrs = 0, mws = 0, channels = 0, cqs = 0, srqs = 0, qps = 0;
    bool operator==(const Counts&) const = default;
  };
  Counts open();
  uint64_t registered_bytes();
  uint64_t refused();   // accesses from afar that the keys did not allow
  uint64_t accesses();  // those that they did

  // Every queue pair there is, in the order of their making.
  std::vector<ibv_qp*> QueuePairs();
  // The key that is good for `address` on the peer of `qp`, and the bytes from there on.
  struct Key {
    uint32_t rkey = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool write = false;
  };
  std::vector<Key> KeysOf(ibv_qp* owner);

  // Whether the NIC would carry this out for the peer of `target`.
  bool WouldAllow(ibv_qp* target, const Key& key);

  void FailNextSend(ibv_wc_status status);     // the next work request anybody posts
  void FailRegistrations(uint64_t bytes_max);  // as RLIMIT_MEMLOCK does
  void HoldReceives(bool hold);                // peers look as though they had posted none
  void SetPortActive(bool active);             // with its event
  void ChangeGid(uint32_t index, const std::string& gid);  // with its event
  void RaiseQpEvent(ibv_qp* qp, ibv_event_type type);      // and puts it in error
  void RaiseEvent(ibv_event_type type);
  // Loses this queue pair's work silently from now on, as an unplugged cable does.
  void Blackhole(ibv_qp* qp);

  // ---- VerbsApi --------------------------------------------------------------------------------
  ibv_device** GetDeviceList(int* count) override;
  void FreeDeviceList(ibv_device** list) override;
  ibv_context* OpenDevice(ibv_device* device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override;
  int QueryGids(ibv_context* context, std::span<ibv_gid_entry> entries) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override;
  void AckAsyncEvent(ibv_async_event*) override {}
  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, uint64_t bytes, unsigned access) override;
  int DeregMr(ibv_mr* mr) override;
  ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) override;
  int DeallocMw(ibv_mw* mw) override;
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void AckCqEvents(ibv_cq*, unsigned) override {}
  int ReqNotifyCq(ibv_cq* cq) override;
  int PollCq(ibv_cq* cq, std::span<ibv_wc> completions) override;
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override;
  int ModifySrq(ibv_srq* srq, ibv_srq_attr* attr, int mask) override;
  int DestroySrq(ibv_srq* srq) override;
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) override;
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override;
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override;
  int DestroyQp(ibv_qp* qp) override;
  int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) override;
  int PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) override;

 private:
  struct Device;
  struct Context;
  struct Channel;
  struct Cq;
  struct Srq;
  struct Qp;
  struct Mr;
  struct Mw;
  struct Work;
  // What a key allows; found anew at each access.
  struct Grant {
    ibv_pd* pd = nullptr;
    uint64_t begin = 0, end = 0;
    unsigned access = 0;
    uint32_t only_qp = 0;  // 0: any
  };

  uint32_t FreshKey() LUWU_REQUIRES(mutex_);
  std::optional<Grant> GrantOf(uint32_t rkey) LUWU_REQUIRES(mutex_);
  void Enqueue(Qp* qp, const ibv_send_wr& wr) LUWU_REQUIRES(mutex_);
  void Progress(Qp* qp) LUWU_REQUIRES(mutex_);
  void ProgressAll() LUWU_REQUIRES(mutex_);
  // False while it has to wait for a receive.
  bool Execute(Qp* qp, Work* work) LUWU_REQUIRES(mutex_);
  bool LocalRangesFit(Qp* qp, const Work& work) LUWU_REQUIRES(mutex_);
  bool RemoteRangeFits(Qp* target, const Work& work) LUWU_REQUIRES(mutex_);
  bool Bind(Qp* qp, const Work& work) LUWU_REQUIRES(mutex_);
  static void Move(const Work& work);
  Qp* Target(Qp* qp) LUWU_REQUIRES(mutex_);
  bool TakeReceive(Qp* target, uint64_t* wr_id) LUWU_REQUIRES(mutex_);
  void Complete(Qp* qp, const Work& work, ibv_wc_status status) LUWU_REQUIRES(mutex_);
  void PushCompletion(Cq* cq, const ibv_wc& wc) LUWU_REQUIRES(mutex_);
  void EnterError(Qp* qp) LUWU_REQUIRES(mutex_);
  void PushEvent(Context* context, const ibv_async_event& event) LUWU_REQUIRES(mutex_);
  void PushPortEvent(ibv_event_type type) LUWU_REQUIRES(mutex_);

  Mutex mutex_;
  std::mt19937 random_ LUWU_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Device>> devices_ LUWU_GUARDED_BY(mutex_);
  std::set<Context*> contexts_ LUWU_GUARDED_BY(mutex_);
  std::map<uint32_t, Mr*> mrs_ LUWU_GUARDED_BY(mutex_);  // by key, as the next two
  std::map<uint32_t, Mw*> mws_ LUWU_GUARDED_BY(mutex_);
  std::map<uint32_t, Qp*> qps_ LUWU_GUARDED_BY(mutex_);
  std::vector<Qp*> qp_order_ LUWU_GUARDED_BY(mutex_);
  std::map<const void*, int> children_ LUWU_GUARDED_BY(mutex_);  // of each object that has any
  Counts counts_ LUWU_GUARDED_BY(mutex_);
  uint64_t registered_bytes_ LUWU_GUARDED_BY(mutex_) = 0;
  uint64_t registered_max_ LUWU_GUARDED_BY(mutex_) = UINT64_MAX;
  uint64_t refused_ LUWU_GUARDED_BY(mutex_) = 0;
  uint64_t accesses_ LUWU_GUARDED_BY(mutex_) = 0;
  std::optional<ibv_wc_status> next_status_ LUWU_GUARDED_BY(mutex_);
  bool hold_receives_ LUWU_GUARDED_BY(mutex_) = false;
};

}  // namespace luwu::transport
