// Memory that a peer may reach: always a sealed memfd, mapped and touched, so that one region can
// be exposed over shm (by passing the descriptor) and over tcp (by id) alike.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/transport/transport.h"

namespace luwu::transport {

class LocalRegion {
 public:
  // With kRemoteRead the memfd is sealed so that no peer can map it writable.
  static StatusOr<std::shared_ptr<LocalRegion>> Create(const std::string& name, uint64_t bytes,
                                                       Access access, const Toucher& touch = {});

  ByteSpan span() const { return memory_.mapping.span(); }
  uint64_t bytes() const { return memory_.mapping.bytes(); }
  int fd() const { return memory_.fd.get(); }
  Access access() const { return access_; }
  // Hangs onto the region what must go before its memory does: registrations with a NIC. Any
  // thread.
  void Keep(std::shared_ptr<const void> attachment) LUWU_EXCLUDES(mutex_);

 private:
  LocalRegion(SharedMemory memory, Access access) : memory_(std::move(memory)), access_(access) {}
  SharedMemory memory_;
  Access access_;
  Mutex mutex_;
  std::vector<std::shared_ptr<const void>> kept_ LUWU_GUARDED_BY(mutex_);  // after the memory
};

// What one end lets its peer reach on one link.
struct ExposedRegion {
  RegionId id = 0;
  std::shared_ptr<LocalRegion> region;
};
using ExposedRegions = std::vector<ExposedRegion>;

// What one end was told (over the control plane) that its peer exposes.
struct RegionDescriptor {
  RegionId id = 0;
  uint64_t bytes = 0;
  Access access = Access::kRemoteRead;
  bool operator==(const RegionDescriptor&) const = default;
};

}  // namespace luwu::transport
