// Storing a shard header where readers in other processes look at it at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/wire/shard_header.h"

namespace luwu {

// The exchange keeps payload stores that come before it before it, and those that come after it
// after it.
inline void StoreHeader(std::byte* target, const ShardHeader& header) {
  uint64_t words[sizeof(header) / 8];
  std::memcpy(words, &header, sizeof(header));
  for (const uint64_t value : words) {
    auto* word = reinterpret_cast<uint64_t*>(target);
    std::atomic_ref<uint64_t>(*word).exchange(value, std::memory_order_acq_rel);
    target += sizeof(value);
  }
}

}  // namespace luwu
