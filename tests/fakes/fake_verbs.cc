// Objects of the fake fabric, their lives, and the faults that tests ask for.
#include "tests/fakes/fake_verbs.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "tests/fakes/fake_verbs_objects.h"

namespace luwu::transport {
namespace {

constexpr int kLimit = 1 << 20;

UniqueFd EventFd() { return UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK)); }

ibv_gid GidOf(const std::string& text) {
  ibv_gid gid = {};
  ::inet_pton(AF_INET6, text.c_str(), gid.raw);
  return gid;
}

template <typename T>
int Free(T* object) {
  delete object;
  return 0;
}

}  // namespace

FakeVerbs::FakeVerbs(std::vector<FakeDeviceShape> devices) : random_(std::random_device{}()) {
  MutexLock lock(mutex_);
  for (FakeDeviceShape& shape : devices) {
    auto device = std::make_unique<Device>();
    std::strncpy(device->name, shape.name.c_str(), sizeof device->name - 1);
    device->transport_type = shape.transport;
    for (const std::string& gid : shape.gids) device->gid_table.push_back(GidOf(gid));
    device->shape = std::move(shape);
    devices_.push_back(std::move(device));
  }
}

FakeVerbs::~FakeVerbs() = default;

// ---- what tests see and do ---------------------------------------------------------------------

FakeVerbs::Counts FakeVerbs::open() {
  MutexLock lock(mutex_);
  return counts_;
}

uint64_t FakeVerbs::registered_bytes() {
  MutexLock lock(mutex_);
  return registered_bytes_;
}

uint64_t FakeVerbs::refused() {
  MutexLock lock(mutex_);
  return refused_;
}

uint64_t FakeVerbs::accesses() {
  MutexLock lock(mutex_);
  return accesses_;
}

std::vector<ibv_qp*> FakeVerbs::QueuePairs() {
  MutexLock lock(mutex_);
  return {qp_order_.begin(), qp_order_.end()};
}

std::vector<FakeVerbs::Key> FakeVerbs::KeysOf(ibv_qp* owner) {
  MutexLock lock(mutex_);
  std::vector<Key> keys;
  for (const auto& [rkey, mw] : mws_) {
    if (!mw->bound || mw->grant.only_qp != owner->qp_num) continue;
    keys.push_back({rkey, mw->grant.begin, mw->grant.end - mw->grant.begin,
                    (mw->grant.access & IBV_ACCESS_REMOTE_WRITE) != 0});
  }
  for (const auto& [rkey, mr] : mrs_) {
    const unsigned remote = mr->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (remote == 0 || mr->pd != owner->pd) continue;
    keys.push_back({rkey, reinterpret_cast<uint64_t>(mr->addr), mr->length,
                    (remote & IBV_ACCESS_REMOTE_WRITE) != 0});
  }
  return keys;
}

void FakeVerbs::FailNextSend(ibv_wc_status status) {
  MutexLock lock(mutex_);
  next_status_ = status;
}

void FakeVerbs::FailRegistrations(uint64_t bytes_max) {
  MutexLock lock(mutex_);
  registered_max_ = bytes_max;
}

void FakeVerbs::HoldReceives(bool hold) {
  MutexLock lock(mutex_);
  hold_receives_ = hold;
  ProgressAll();
}

void FakeVerbs::SetPortActive(bool active) {
  MutexLock lock(mutex_);
  for (const auto& device : devices_) device->shape.port_active = active;
  PushPortEvent(active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void FakeVerbs::ChangeGid(uint32_t index, const std::string& gid) {
  MutexLock lock(mutex_);
  for (const auto& device : devices_) device->gid_table[index] = GidOf(gid);
  PushPortEvent(IBV_EVENT_GID_CHANGE);
}

void FakeVerbs::PushPortEvent(ibv_event_type type) {
  ibv_async_event event = {};
  event.event_type = type;
  event.element.port_num = 1;
  for (Context* context : contexts_) PushEvent(context, event);
}

void FakeVerbs::RaiseEvent(ibv_event_type type) {
  MutexLock lock(mutex_);
  PushPortEvent(type);
}

void FakeVerbs::RaiseQpEvent(ibv_qp* qp, ibv_event_type type) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Qp*>(qp);
  EnterError(fake);
  ibv_async_event event = {};
  event.event_type = type;
  event.element.qp = qp;
  PushEvent(fake->fake_context, event);
}

void FakeVerbs::Blackhole(ibv_qp* qp) {
  MutexLock lock(mutex_);
  static_cast<Qp*>(qp)->blackhole = true;
}

void FakeVerbs::PushEvent(Context* context, const ibv_async_event& event) {
  context->events.push_back(event);
  (void)::eventfd_write(context->events_fd.get(), 1);
}

// ---- devices -----------------------------------------------------------------------------------

ibv_device** FakeVerbs::GetDeviceList(int* count) {
  MutexLock lock(mutex_);
  auto** list = new ibv_device*[devices_.size() + 1]();
  for (size_t i = 0; i < devices_.size(); ++i) list[i] = devices_[i].get();
  *count = static_cast<int>(devices_.size());
  return list;
}

void FakeVerbs::FreeDeviceList(ibv_device** list) { delete[] list; }

ibv_context* FakeVerbs::OpenDevice(ibv_device* device) {
  MutexLock lock(mutex_);
  auto* context = new Context();
  context->device = device;
  context->fake = static_cast<Device*>(device);
  context->events_fd = EventFd();
  context->async_fd = context->events_fd.get();
  contexts_.insert(context);
  ++counts_.contexts;
  return context;
}

int FakeVerbs::CloseDevice(ibv_context* context) {
  MutexLock lock(mutex_);
  if (children_[context] != 0) return EBUSY;
  contexts_.erase(static_cast<Context*>(context));
  --counts_.contexts;
  return Free(static_cast<Context*>(context));
}

int FakeVerbs::QueryDevice(ibv_context* context, ibv_device_attr* attr) {
  MutexLock lock(mutex_);
  const FakeDeviceShape& shape = static_cast<Context*>(context)->fake->shape;
  *attr = {};
  attr->max_mr_size = UINT64_MAX;
  attr->max_qp_wr = attr->max_srq_wr = 8192;
  attr->max_cqe = attr->max_mw = kLimit;
  attr->max_sge = 16;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
  attr->phys_port_cnt = 1;
  attr->max_srq = shape.shared_receives ? kLimit : 0;
  attr->device_cap_flags = shape.windows ? IBV_DEVICE_MEM_WINDOW_TYPE_2B : 0;
  return 0;
}

int FakeVerbs::QueryPort(ibv_context* context, uint8_t, ibv_port_attr* attr) {
  MutexLock lock(mutex_);
  const FakeDeviceShape& shape = static_cast<Context*>(context)->fake->shape;
  *attr = {};
  attr->state = shape.port_active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attr->active_mtu = attr->max_mtu = IBV_MTU_1024;
  attr->max_msg_sz = 1U << 30;
  attr->lid = 7;
  attr->link_layer = shape.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

int FakeVerbs::QueryGids(ibv_context* context, std::span<ibv_gid_entry> entries) {
  MutexLock lock(mutex_);
  const Device& device = *static_cast<Context*>(context)->fake;
  const size_t count = std::min(entries.size(), device.gid_table.size());
  for (uint32_t i = 0; i < count; ++i) {
    entries[i] = {
        device.gid_table[i], i, 1,
        static_cast<uint32_t>(device.shape.ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB), 0};
  }
  return static_cast<int>(count);
}

int FakeVerbs::GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Context*>(context);
  if (fake->events.empty()) return EAGAIN;
  eventfd_t ignored = 0;
  (void)::eventfd_read(fake->async_fd, &ignored);
  *event = fake->events.front();
  fake->events.pop_front();
  return 0;
}

// ---- protection --------------------------------------------------------------------------------

ibv_pd* FakeVerbs::AllocPd(ibv_context* context) {
  MutexLock lock(mutex_);
  ++children_[context];
  ++counts_.pds;
  auto* pd = new ibv_pd();
  pd->context = context;
  return pd;
}

int FakeVerbs::DeallocPd(ibv_pd* pd) {
  MutexLock lock(mutex_);
  if (children_[pd] != 0) return EBUSY;
  --children_[pd->context];
  --counts_.pds;
  return Free(pd);
}

uint32_t FakeVerbs::FreshKey() {
  while (true) {
    const auto key = static_cast<uint32_t>(random_()) & ~0xffU;
    if (key == 0 || mrs_.contains(key)) continue;
    const bool taken = std::any_of(mws_.begin(), mws_.end(), [key](const auto& entry) {
      return (entry.first & ~0xffU) == key;
    });
    if (!taken) return key;
  }
}

ibv_mr* FakeVerbs::RegMr(ibv_pd* pd, void* address, uint64_t bytes, unsigned access) {
  MutexLock lock(mutex_);
  if (registered_bytes_ + bytes > registered_max_) {
    errno = ENOMEM;
    return nullptr;
  }
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  auto* mr = new Mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = mr->rkey = FreshKey();
  mr->access = access;
  mrs_[mr->rkey] = mr;
  registered_bytes_ += bytes;
  ++children_[pd];
  ++counts_.mrs;
  return mr;
}

int FakeVerbs::DeregMr(ibv_mr* mr) {
  MutexLock lock(mutex_);
  if (children_[mr] != 0) return EBUSY;
  registered_bytes_ -= mr->length;
  mrs_.erase(mr->rkey);
  --children_[mr->pd];
  --counts_.mrs;
  return Free(static_cast<Mr*>(mr));
}

ibv_mw* FakeVerbs::AllocMw(ibv_pd* pd, ibv_mw_type type) {
  MutexLock lock(mutex_);
  auto* mw = new Mw();
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = type;
  mw->rkey = mw->base_key = FreshKey();
  mws_[mw->rkey] = mw;
  ++children_[pd];
  ++counts_.mws;
  return mw;
}

int FakeVerbs::DeallocMw(ibv_mw* mw) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Mw*>(mw);
  if (fake->bound) --children_[fake->mr];
  mws_.erase(mw->rkey);
  --children_[mw->pd];
  --counts_.mws;
  return Free(fake);
}

// ---- queues ------------------------------------------------------------------------------------

ibv_comp_channel* FakeVerbs::CreateCompChannel(ibv_context* context) {
  MutexLock lock(mutex_);
  auto* channel = new Channel();
  channel->context = context;
  channel->events_fd = EventFd();
  channel->fd = channel->events_fd.get();
  ++children_[context];
  ++counts_.channels;
  return channel;
}

int FakeVerbs::DestroyCompChannel(ibv_comp_channel* channel) {
  MutexLock lock(mutex_);
  if (children_[channel] != 0) return EBUSY;
  --children_[channel->context];
  --counts_.channels;
  return Free(static_cast<Channel*>(channel));
}

ibv_cq* FakeVerbs::CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  MutexLock lock(mutex_);
  auto* cq = new Cq();
  cq->context = context;
  cq->cqe = entries;
  cq->fake_channel = static_cast<Channel*>(channel);
  ++children_[channel];
  ++counts_.cqs;
  return cq;
}

int FakeVerbs::DestroyCq(ibv_cq* cq) {
  MutexLock lock(mutex_);
  if (children_[cq] != 0) return EBUSY;
  auto* fake = static_cast<Cq*>(cq);
  std::erase(fake->fake_channel->events, fake);
  --children_[fake->fake_channel];
  --counts_.cqs;
  return Free(fake);
}

ibv_srq* FakeVerbs::CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  MutexLock lock(mutex_);
  auto* srq = new Srq();
  srq->context = pd->context;
  srq->pd = pd;
  srq->capacity = attr->attr.max_wr;
  ++children_[pd];
  ++counts_.srqs;
  return srq;
}

int FakeVerbs::ModifySrq(ibv_srq* srq, ibv_srq_attr* attr, int) {
  MutexLock lock(mutex_);
  static_cast<Srq*>(srq)->limit = attr->srq_limit;
  return 0;
}

int FakeVerbs::DestroySrq(ibv_srq* srq) {
  MutexLock lock(mutex_);
  if (children_[srq] != 0) return EBUSY;
  --children_[srq->pd];
  --counts_.srqs;
  return Free(static_cast<Srq*>(srq));
}

ibv_qp* FakeVerbs::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  MutexLock lock(mutex_);
  const Device& device = *static_cast<Context*>(pd->context)->fake;
  if (attr->cap.max_inline_data > device.shape.inline_max) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = new Qp();
  qp->context = pd->context;
  qp->pd = pd;
  qp->srq = attr->srq;
  qp->state = IBV_QPS_RESET;
  qp->fake_context = static_cast<Context*>(pd->context);
  qp->fake_send_cq = static_cast<Cq*>(attr->send_cq);
  qp->fake_recv_cq = static_cast<Cq*>(attr->recv_cq);
  qp->fake_srq = static_cast<Srq*>(attr->srq);
  qp->signal_all = attr->sq_sig_all != 0;
  do {
    qp->qp_num = static_cast<uint32_t>(random_()) & 0xffffff;
  } while (qp->qp_num < 2 || qps_.contains(qp->qp_num));
  qps_[qp->qp_num] = qp;
  qp_order_.push_back(qp);
  for (const void* parent : {static_cast<const void*>(pd), static_cast<const void*>(attr->send_cq),
                             static_cast<const void*>(attr->srq)}) {
    if (parent != nullptr) ++children_[parent];
  }
  ++counts_.qps;
  return qp;
}

int FakeVerbs::DestroyQp(ibv_qp* qp) {
  MutexLock lock(mutex_);
  auto* fake = static_cast<Qp*>(qp);
  for (const void* parent :
       {static_cast<const void*>(qp->pd), static_cast<const void*>(fake->fake_send_cq),
        static_cast<const void*>(fake->fake_srq)}) {
    if (parent != nullptr) --children_[parent];
  }
  std::erase_if(fake->fake_send_cq->completions,
                [qp](const ibv_wc& wc) { return wc.qp_num == qp->qp_num; });
  std::erase_if(fake->fake_context->events, [qp](const ibv_async_event& event) {
    const bool of_qp = event.event_type == IBV_EVENT_QP_FATAL ||
                       event.event_type == IBV_EVENT_QP_REQ_ERR ||
                       event.event_type == IBV_EVENT_QP_ACCESS_ERR;
    return of_qp && event.element.qp == qp;
  });
  qps_.erase(qp->qp_num);
  std::erase(qp_order_, fake);
  --counts_.qps;
  return Free(fake);
}

}  // namespace luwu::transport
