// The weights region of a job on this node: what workers read with one-sided reads. Each trainable
// shard has two buffers, used by even and odd versions in turn; a frozen one has a single buffer.
//
// Writing a new version: Invalidate takes the old header away, the payload is written, Publish
// seals the header of the new version. Only then may the board announce it.
//
// Threads: any; calls for one shard are made by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/transport/region.h"
#include "common/wire/shard_map.h"

namespace luwu {

class ServedWeights {
 public:
  // Bytes of the region; at least a page, since there is no empty region.
  static uint64_t BytesFor(const ShardMap& map);
  // `spec` and `map` outlive the result.
  static StatusOr<std::unique_ptr<ServedWeights>> Create(const JobSpec& spec, const ShardMap& map,
                                                         uint64_t epoch);
  struct Private {};
  ServedWeights(Private, const JobSpec& spec, const ShardMap& map, uint64_t epoch)
      : spec_(spec), map_(map), epoch_(epoch) {}

  std::shared_ptr<transport::LocalRegion> region() const { return region_; }

  std::byte* Payload(uint32_t index, uint64_t version) const;
  uint64_t PayloadBytes(uint32_t index) const;
  // Whoever still reads this buffer finds that its version is gone.
  void Invalidate(uint32_t index, uint64_t version);
  void Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c);
  // Copies the bytes of `version` into the buffer of `version + 1`; returns their CRC32C. Leaves
  // that buffer invalid until Publish.
  uint32_t CopyToNext(uint32_t index, uint64_t version);

 private:
  void WriteHeader(uint32_t index, uint64_t version_of_buffer, uint64_t version, uint32_t crc);

  const JobSpec& spec_;
  const ShardMap& map_;
  const uint64_t epoch_;
  std::shared_ptr<transport::LocalRegion> region_;
};

}  // namespace luwu
