#include "common/transport/verbs/adapter.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/log.h"
#include "common/transport/socket.h"
#include "common/transport/verbs/verbs_endpoint.h"

namespace luwu::transport {

VerbsAdapter::VerbsAdapter(std::shared_ptr<EventLoop> loop, VerbsOptions options,
                           bool shared_receives)
    : loop_(std::move(loop)), options_(std::move(options)), shared_receives_(shared_receives) {}

VerbsAdapter::~VerbsAdapter() = default;

Status VerbsAdapter::Open() {
  MutexLock lock(mutex_);
  if (device_ != nullptr) return OkStatus();
  ASSIGN_OR_RETURN(std::shared_ptr<VerbsDevice> device, VerbsDevice::Open(options_));
  const int fd = device->context()->async_fd;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return Error(ErrorCode::kInternal, "fcntl on a device: {}", ErrnoText(errno));
  }
  RETURN_IF_ERROR(loop_->Add(fd, this, false));
  device_ = std::move(device);
  LogInfo("rdma_opened", "device=\"{}\" windows={}", device_->Describe(), device_->has_windows());
  return OkStatus();
}

StatusOr<std::shared_ptr<VerbsDomain>> VerbsAdapter::Domain(uint64_t id) {
  RETURN_IF_ERROR(Open());
  MutexLock lock(mutex_);
  for (auto it = domains_.begin(); it != domains_.end();) {
    it = it->second.expired() ? domains_.erase(it) : std::next(it);
  }
  if (const auto known = domains_.find(id); known != domains_.end()) {
    if (auto domain = known->second.lock()) return domain;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<VerbsDomain> domain,
                   VerbsDomain::Create(device_, options_, shared_receives_));
  domains_[id] = domain;
  return domain;
}

VerbsCounters VerbsAdapter::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

std::string VerbsAdapter::Describe() const {
  MutexLock lock(mutex_);
  return device_ == nullptr ? "" : device_->Describe();
}

void VerbsAdapter::AddLink(VerbsEndpoint* link) {
  links_.push_back(link);
  MutexLock lock(mutex_);
  ++counters_.links;
  ++counters_.links_made;
}

void VerbsAdapter::RemoveLink(VerbsEndpoint* link) {
  if (std::erase(links_, link) == 0) return;
  MutexLock lock(mutex_);
  --counters_.links;
}

void VerbsAdapter::CountFailure(bool protection_fault) {
  MutexLock lock(mutex_);
  ++counters_.links_failed;
  if (protection_fault) ++counters_.protection_faults;
}

void VerbsAdapter::Close() {
  std::shared_ptr<VerbsDevice> device;
  {
    MutexLock lock(mutex_);
    device = std::move(device_);
    device_ = nullptr;
  }
  loop_->RunSync(
      [&] { loop_->Remove(device == nullptr ? -1 : device->context()->async_fd, this); });
}

bool VerbsAdapter::OnReady(uint32_t /*events*/) {
  std::shared_ptr<VerbsDevice> device;
  {
    MutexLock lock(mutex_);
    device = device_;
  }
  if (device == nullptr) return false;
  ibv_async_event event = {};
  if (device->api()->GetAsyncEvent(device->context().get(), &event) != 0) return false;
  // First, for who destroys what the event names waits for this. Links end on this thread only, so
  // the names stay good until it has been handled.
  device->api()->AckAsyncEvent(&event);
  OnEvent(event);
  return true;
}

VerbsEndpoint* VerbsAdapter::FindLink(const ibv_qp* qp) const {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [qp](const VerbsEndpoint* link) { return link->Owns(qp); });
  return found == links_.end() ? nullptr : *found;
}

// Each failing link leaves the list.
void VerbsAdapter::FailAll(const Status& why) {
  while (!links_.empty()) links_.front()->OnDeviceEvent(why, false);
}

// New links read the port themselves; those that are up are told when its address has moved.
void VerbsAdapter::OnPort(uint8_t port, ibv_event_type type, const Status& why) {
  std::shared_ptr<VerbsDevice> device;
  {
    MutexLock lock(mutex_);
    device = device_;
  }
  const PortAddress before = device->address();
  if (port != before.port) return;
  LogWarning("rdma_event", "device={} port={} why=\"{}\"", device->name(), port, MessageOf(why));
  if (type == IBV_EVENT_PORT_ERR) return FailAll(why);
  const Status readable = device->Refresh();
  const PortAddress after = device->address();
  const bool moved = after.gid_index != before.gid_index || after.lid != before.lid ||
                     GidText(after.gid) != GidText(before.gid);
  if (!readable.ok() || moved) {
    FailAll(Error(ErrorCode::kUnavailable, "{}, {}", MessageOf(why),
                  readable.ok() ? "now " + device->Describe() : MessageOf(readable)));
  }
}

void VerbsAdapter::OnEvent(const ibv_async_event& event) {
  const Status why = Error(ErrorCode::kUnavailable, "RDMA: {}", EventText(event.event_type));
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      if (VerbsEndpoint* link = FindLink(event.element.qp)) {
        link->OnDeviceEvent(why, event.event_type != IBV_EVENT_QP_FATAL);
      }
      return;
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      std::vector<std::shared_ptr<VerbsDomain>> domains;
      {
        MutexLock lock(mutex_);
        for (const auto& [id, domain] : domains_) domains.push_back(domain.lock());
      }
      for (const auto& domain : domains) {
        if (domain != nullptr && domain->srq().get() == event.element.srq) domain->OnLow();
      }
      return;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PORT_ACTIVE:
      return OnPort(event.element.port_num, event.event_type, why);
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      LogWarning("rdma_event", "why=\"{}\"", MessageOf(why));
      return FailAll(why);
    default:
      return;
  }
}

}  // namespace luwu::transport
