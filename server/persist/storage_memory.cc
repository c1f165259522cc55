#include "server/persist/storage_memory.h"

#include <algorithm>
#include <limits>

#include "common/base/bytes.h"

namespace luwu::persist {
namespace {

// A commit of 2048 shards is 200 KB: some dozens of commits per flush.
constexpr uint64_t kCatalogueMin = kMiB, kCatalogueMax = 16 * kMiB;
constexpr uint64_t kCatalogueBuffers = 2;
// One memtable fills while others are written; larger ones do not make it faster.
constexpr uint64_t kValuesMin = 4 * kMiB, kValuesMax = 128 * kMiB;
constexpr uint64_t kValuesBuffers = 3;
// Four threads write or read a value, each with a copy in RocksDB, and the memtable's last value
// reaches above its size.
constexpr uint64_t kCopies = 7;
constexpr uint64_t kCopyMax = 16 * kMiB;
constexpr uint64_t kShare = 64;  // of the budget for each memtable

}  // namespace

StorageMemory PlanMemory(uint64_t budget_bytes, Engine engine) {
  const uint64_t share =
      budget_bytes == 0 ? std::numeric_limits<uint64_t>::max() : budget_bytes / kShare;
  StorageMemory memory;
  memory.catalogue_buffer_bytes = std::clamp(share, kCatalogueMin, kCatalogueMax);
  memory.bytes = kCatalogueBuffers * memory.catalogue_buffer_bytes;
  if (engine == Engine::kRocksdbValues) {
    memory.values_buffer_bytes = std::clamp(share, kValuesMin, kValuesMax);
    memory.bytes += kValuesBuffers * memory.values_buffer_bytes +
                    kCopies * std::min(memory.values_buffer_bytes, kCopyMax);
  }
  return memory;
}

}  // namespace luwu::persist
