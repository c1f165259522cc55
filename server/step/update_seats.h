// Where the update threads run. On a host of several NUMA nodes they are dealt out over the nodes
// in proportion to the CPUs, and each stays on its node; a shard belongs to the node of the thread
// that its number falls to.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/numa.h"
#include "server/store/shard_homes.h"

namespace luwu {

struct UpdateSeat {
  uint32_t home = 0;           // number of its node among those that have a thread
  std::vector<uint32_t> cpus;  // which it stays on; empty: any
  bool operator==(const UpdateSeat&) const = default;
};

// One for each of the `threads`. `pinned`: one CPU each of the `allowed` ones, node after node in
// turns, beginning again when they run out. `nodes`: fewer than two make no difference.
std::vector<UpdateSeat> SeatsFor(uint32_t threads, bool pinned, std::span<const NumaNode> nodes,
                                 std::span<const uint32_t> allowed);

// One home unless there are seats with different ones.
ShardHomes HomesOf(std::span<const UpdateSeat> seats);

}  // namespace luwu
