#include "common/transport/verbs/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "common/transport/socket.h"

namespace luwu::transport {
namespace {

constexpr int kGidsMax = 512;

uint32_t MtuBytes(ibv_mtu mtu) {
  const auto step = static_cast<uint32_t>(mtu);
  return step >= IBV_MTU_256 && step <= IBV_MTU_4096 ? 128U << step : 256U;
}

bool IsIpv4(const ibv_gid& gid) {
  static constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix.data(), kPrefix.size()) == 0;
}

// RoCE v2 passes routers, and an IPv4 address is what an administrator gave the interface.
int Preference(const ibv_gid_entry& entry) {
  const bool link_local = entry.gid.raw[0] == 0xfe && (entry.gid.raw[1] & 0xc0) == 0x80;
  return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0) + (IsIpv4(entry.gid) ? 2 : 0) +
         (link_local ? 0 : 1);
}

// Owns the list of a library.
struct DeviceList {
  explicit DeviceList(VerbsApi* api) : api(api), devices(api->GetDeviceList(&count)) {}
  ~DeviceList() {
    if (devices != nullptr) api->FreeDeviceList(devices);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  VerbsApi* const api;
  int count = 0;
  ibv_device** const devices;
};

Status CheckDevice(const ibv_device& device) {
  if (device.transport_type == IBV_TRANSPORT_IB) return OkStatus();
  if (device.transport_type == IBV_TRANSPORT_IWARP) {
    return Error(ErrorCode::kUnsupported,
                 "{} is an iWARP device: iWARP writes carry no immediate data, by which gradients "
                 "are announced; use tcp on this host, or set rdma.device to an InfiniBand or RoCE "
                 "device",
                 device.name);
  }
  return Error(ErrorCode::kUnsupported, "{} is neither an InfiniBand nor a RoCE device",
               device.name);
}

}  // namespace

std::string GidText(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

StatusOr<std::shared_ptr<VerbsDevice>> VerbsDevice::Open(const VerbsOptions& options) {
  if (options.use == VerbsUse::kOff) {
    return Error(ErrorCode::kUnsupported, "RDMA is switched off here (rdma.use)");
  }
  VerbsApi* api = options.api;
  if (api == nullptr) {
    ASSIGN_OR_RETURN(api, LoadLibibverbs());
  }
  const DeviceList list(api);
  if (list.count == 0 || list.devices == nullptr) {
    return Error(ErrorCode::kUnsupported, "this host has no RDMA device");
  }
  Status refusals = OkStatus();
  std::string names;
  for (int i = 0; i < list.count; ++i) {
    const std::string name = list.devices[i]->name;
    names += (i == 0 ? "" : ", ") + name;
    if (!options.device.empty() && options.device != name) continue;
    Status status = CheckDevice(*list.devices[i]);
    if (status.ok()) {
      struct Made : VerbsDevice {};  // make_shared needs a constructor that it may call
      const std::shared_ptr<VerbsDevice> device = std::make_shared<Made>();
      device->api_ = api;
      device->name_ = name;
      const auto context = OpenContext(api, list.devices[i]);
      status = context.status();
      if (status.ok()) {
        device->context_ = *context;
        status = device->Probe(options);
      }
      if (status.ok()) return device;
    }
    status = Annotate(status, "RDMA device " + name);
    refusals = refusals.ok() ? status : Annotate(refusals, MessageOf(status));
  }
  if (!refusals.ok()) return refusals;
  return Error(ErrorCode::kInvalidArgument, "rdma.device is '{}', but this host has only: {}",
               options.device, names);
}

Status VerbsDevice::Probe(const VerbsOptions& options) {
  options_ = options;
  if (const int error = api_->QueryDevice(context_.get(), &attr_); error != 0) {
    return Error(ErrorCode::kUnsupported, "ibv_query_device failed: {}", ErrnoText(error));
  }
  has_windows_ = options.windows && (attr_.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 &&
                 attr_.max_mw > 0;
  ASSIGN_OR_RETURN(const PortAddress address, FindPort(options));
  ibv_port_attr port = {};
  if (const int error = api_->QueryPort(context_.get(), address.port, &port); error != 0) {
    return Error(ErrorCode::kUnsupported, "ibv_query_port failed: {}", ErrnoText(error));
  }
  message_bytes_max_ = port.max_msg_sz;
  MutexLock lock(mutex_);
  address_ = address;
  return OkStatus();
}

StatusOr<PortAddress> VerbsDevice::FindPort(const VerbsOptions& options) const {
  if (options.port > attr_.phys_port_cnt) {
    return Error(ErrorCode::kInvalidArgument, "rdma.port is {}, but the device has {} ports",
                 options.port, attr_.phys_port_cnt);
  }
  if (options.port != 0) return ReadPort(static_cast<uint8_t>(options.port), options);
  Status first = Error(ErrorCode::kUnsupported, "the device has no port");
  for (uint8_t port = 1; port <= attr_.phys_port_cnt; ++port) {
    StatusOr<PortAddress> address = ReadPort(port, options);
    if (address.ok()) return address;
    if (port == 1) first = address.status();
  }
  return first;
}

StatusOr<PortAddress> VerbsDevice::ReadPort(uint8_t port, const VerbsOptions& options) const {
  ibv_port_attr attr = {};
  if (const int error = api_->QueryPort(context_.get(), port, &attr); error != 0) {
    return Error(ErrorCode::kUnsupported, "ibv_query_port of port {} failed: {}", port,
                 ErrnoText(error));
  }
  if (attr.state != IBV_PORT_ACTIVE) {
    return Error(ErrorCode::kUnavailable,
                 "port {} is not active (state {}); check cable, switch and `ibv_devinfo`", port,
                 static_cast<int>(attr.state));
  }
  PortAddress address;
  address.port = port;
  address.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  address.lid = attr.lid;
  address.mtu_bytes = MtuBytes(attr.active_mtu);
  if (options.mtu != 0) {
    if (std::find(std::begin(kVerbsMtus), std::end(kVerbsMtus), options.mtu) ==
            std::end(kVerbsMtus) ||
        options.mtu > address.mtu_bytes) {
      return Error(
          ErrorCode::kInvalidArgument,
          "rdma.mtu is {}; port {} takes 256, 512, 1024, 2048 or 4096 up to its active MTU "
          "of {}",
          options.mtu, port, address.mtu_bytes);
    }
    address.mtu_bytes = options.mtu;
  }
  RETURN_IF_ERROR(ChooseGid(options, &address));
  return address;
}

Status VerbsDevice::ChooseGid(const VerbsOptions& options, PortAddress* address) const {
  std::vector<ibv_gid_entry> entries(kGidsMax);
  const int count = api_->QueryGids(context_.get(), entries);
  if (count < 0) {
    return Error(ErrorCode::kUnsupported, "reading the GID table failed: {}", ErrnoText(-count));
  }
  entries.resize(static_cast<size_t>(count));
  const ibv_gid_entry* best = nullptr;
  std::string indices;
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num != address->port) continue;
    indices +=
        fmt::format("{}{} ({})", indices.empty() ? "" : ", ", entry.gid_index, GidText(entry.gid));
    if (options.gid_index >= 0) {
      if (entry.gid_index == static_cast<uint32_t>(options.gid_index)) best = &entry;
    } else if (best == nullptr || Preference(entry) > Preference(*best)) {
      best = &entry;
    }
  }
  if (best == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "rdma.gid_index is {}, but port {} has the GIDs: {}",
                 options.gid_index < 0 ? "auto" : std::to_string(options.gid_index), address->port,
                 indices.empty() ? "none; give its interface an address" : indices);
  }
  address->gid_index = best->gid_index;
  address->gid = best->gid;
  return OkStatus();
}

PortAddress VerbsDevice::address() const {
  MutexLock lock(mutex_);
  return address_;
}

Status VerbsDevice::Refresh() {
  StatusOr<PortAddress> address = FindPort(options_);
  if (!address.ok()) return Annotate(address.status(), "RDMA device " + name_);
  MutexLock lock(mutex_);
  address_ = *address;
  return OkStatus();
}

std::string VerbsDevice::Describe() const {
  const PortAddress at = address();
  return fmt::format("{} port {}, GID index {} ({}), MTU {}", name_, at.port, at.gid_index,
                     GidText(at.gid), at.mtu_bytes);
}

}  // namespace luwu::transport
