// One opened RDMA device and the port and GID that links go through. Choosing is automatic where
// the options leave it open; every refusal names the device, the setting and what would do.
//
// Constant after Open but for Refresh, which the progress thread calls; any thread reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/sync.h"
#include "common/transport/verbs/handles.h"
#include "common/transport/verbs/verbs_options.h"

namespace luwu::transport {

// What a peer must know to reach this port.
struct PortAddress {
  uint8_t port = 0;
  bool ethernet = false;  // RoCE: packets carry GIDs; else InfiniBand LIDs
  uint16_t lid = 0;
  uint32_t gid_index = 0;
  ibv_gid gid = {};
  uint32_t mtu_bytes = 0;
};

class VerbsDevice {
 public:
  // kUnsupported: no libibverbs, no device, or none that does. kInvalidArgument: a setting that
  // does not fit what there is.
  static StatusOr<std::shared_ptr<VerbsDevice>> Open(const VerbsOptions& options);

  VerbsApi* api() const { return api_; }
  const ContextHandle& context() const { return context_; }
  const std::string& name() const { return name_; }
  const ibv_device_attr& attr() const { return attr_; }
  uint64_t message_bytes_max() const { return message_bytes_max_; }
  // Whether keys can be windows, bound to one queue pair, that cost nothing to make.
  bool has_windows() const { return has_windows_; }
  PortAddress address() const LUWU_EXCLUDES(mutex_);
  // Reads port and GID again, after an event. An error says why no link can be made now.
  Status Refresh() LUWU_EXCLUDES(mutex_);
  // "rxe0 port 1, GID index 1 (::ffff:10.77.0.1), MTU 4096"
  std::string Describe() const;

 private:
  VerbsDevice() = default;
  Status Probe(const VerbsOptions& options);
  StatusOr<PortAddress> FindPort(const VerbsOptions& options) const;
  StatusOr<PortAddress> ReadPort(uint8_t port, const VerbsOptions& options) const;
  Status ChooseGid(const VerbsOptions& options, PortAddress* address) const;

  VerbsApi* api_ = nullptr;
  ContextHandle context_;
  std::string name_;
  VerbsOptions options_;
  ibv_device_attr attr_ = {};
  uint64_t message_bytes_max_ = 0;
  bool has_windows_ = false;

  mutable Mutex mutex_;
  PortAddress address_ LUWU_GUARDED_BY(mutex_);
};

// "fe80::1" and "::ffff:10.77.0.1"
std::string GidText(const ibv_gid& gid);

}  // namespace luwu::transport
