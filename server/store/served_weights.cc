#include "server/store/served_weights.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/crc32c.h"
#include "common/wire/shard_header.h"
#include "server/store/served_header.h"

namespace luwu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kNoVersion = std::numeric_limits<uint64_t>::max();

}  // namespace

uint64_t ServedWeights::BytesFor(const ShardMap& map) {
  return std::max(AlignUp(map.weights_bytes(), kPageBytes), kPageBytes);
}

StatusOr<std::unique_ptr<ServedWeights>> ServedWeights::Create(const JobSpec& spec,
                                                               const ShardMap& map, uint64_t epoch,
                                                               const ShardHomes& homes) {
  std::vector<ShardHomes::Start> starts;
  for (const uint64_t version : {0u, 1u}) {
    for (uint32_t i = 0; i < map.shard_count(); ++i) {
      starts.push_back({map.payload_offset(i, version), i});
    }
  }
  auto weights = std::make_unique<ServedWeights>(Private{}, spec, map, epoch);
  ASSIGN_OR_RETURN(
      weights->region_,
      transport::LocalRegion::Create("luwu-weights", BytesFor(map), transport::Access::kRemoteRead,
                                     homes.TouchFor(std::move(starts), kPageBytes)));
  return weights;
}

std::byte* ServedWeights::Payload(uint32_t index, uint64_t version) const {
  return region_->span().data() + map_.payload_offset(index, version);
}

uint64_t ServedWeights::PayloadBytes(uint32_t index) const {
  return map_.shards()[index].elements * DTypeBytes(spec_.served_dtype);
}

StatusOr<std::byte*> ServedWeights::Begin(uint32_t index, uint64_t version) {
  WriteHeader(index, version, kNoVersion, 0);
  return Payload(index, version);
}

void ServedWeights::Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c) {
  WriteHeader(index, version, version, payload_crc32c);
}

uint32_t ServedWeights::CopyToNext(uint32_t index, uint64_t version) {
  WriteHeader(index, version + 1, kNoVersion, 0);
  const ConstByteSpan source(Payload(index, version), PayloadBytes(index));
  std::memcpy(Payload(index, version + 1), source.data(), source.size());
  return Crc32c(source);
}

void ServedWeights::WriteHeader(uint32_t index, uint64_t version_of_buffer, uint64_t version,
                                uint32_t crc) {
  const LocalShard& shard = map_.shards()[index];
  ShardHeader header = {};
  header.dtype = static_cast<uint8_t>(spec_.served_dtype);
  header.epoch = epoch_;
  header.version = version;
  header.layer = shard.layer;
  header.shard = shard.shard;
  header.payload_bytes = PayloadBytes(index);
  header.payload_crc32c = crc;
  SealShardHeader(&header);
  StoreHeader(region_->span().data() + ShardMap::header_offset(index, version_of_buffer), header);
}

}  // namespace luwu
