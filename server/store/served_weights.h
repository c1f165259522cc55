// Served copies that are all in memory: each has its buffer in the weights region. Begin takes the
// old header away, Publish seals that of the new version.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/tensor/job_spec.h"
#include "common/transport/region.h"
#include "common/wire/shard_map.h"
#include "server/store/served_copies.h"
#include "server/store/shard_homes.h"

namespace luwu {

class ServedWeights final : public ServedCopies {
 public:
  // Bytes of the region; at least a page, since there is no empty region.
  static uint64_t BytesFor(const ShardMap& map);
  // `spec` and `map` outlive the result.
  static StatusOr<std::unique_ptr<ServedWeights>> Create(const JobSpec& spec, const ShardMap& map,
                                                         uint64_t epoch,
                                                         const ShardHomes& homes = {});
  struct Private {};
  ServedWeights(Private, const JobSpec& spec, const ShardMap& map, uint64_t epoch)
      : spec_(spec), map_(map), epoch_(epoch) {}

  std::shared_ptr<transport::LocalRegion> region() const override { return region_; }
  uint64_t PayloadBytes(uint32_t index) const override;
  std::byte* Payload(uint32_t index, uint64_t version) const override;
  // Whoever still reads this buffer finds that its version is gone.
  StatusOr<std::byte*> Begin(uint32_t index, uint64_t version) override;
  void Finish(uint32_t /*index*/, uint64_t /*version*/) override {}
  void Abandon(uint32_t /*index*/, uint64_t /*version*/) override {}
  uint32_t CopyToNext(uint32_t index, uint64_t version) override;
  void Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c) override;

 private:
  void WriteHeader(uint32_t index, uint64_t version_of_buffer, uint64_t version, uint32_t crc);

  const JobSpec& spec_;
  const ShardMap& map_;
  const uint64_t epoch_;
  std::shared_ptr<transport::LocalRegion> region_;
};

}  // namespace luwu
