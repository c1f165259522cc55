// How much memory RocksDB may take, out of the node's budget. Its block caches are off and its
// tables small, so that what counts are memtables, and copies of values on their way. Pure.
#pragma once

#include <cstdint>

#include "server/persist/node_storage.h"

namespace luwu::persist {

struct StorageMemory {
  uint64_t catalogue_buffer_bytes = 0;  // of one memtable
  uint64_t values_buffer_bytes = 0;     // 0 with the engine `extents`
  uint64_t bytes = 0;                   // of all that
};

// A budget of 0 is one that does not matter.
StorageMemory PlanMemory(uint64_t budget_bytes, Engine engine);

}  // namespace luwu::persist
