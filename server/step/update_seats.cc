#include "server/step/update_seats.h"

#include <algorithm>

namespace luwu {
namespace {

// The first CPU of each node, then the second of each that has two, and so on.
std::vector<UpdateSeat> CpusInTurns(std::span<const NumaNode> nodes) {
  std::vector<UpdateSeat> seats;
  size_t longest = 0;
  for (const NumaNode& node : nodes) longest = std::max(longest, node.cpus.size());
  for (size_t i = 0; i < longest; ++i) {
    for (uint32_t home = 0; home < nodes.size(); ++home) {
      if (i < nodes[home].cpus.size()) seats.push_back({home, {nodes[home].cpus[i]}});
    }
  }
  return seats;
}

}  // namespace

std::vector<UpdateSeat> SeatsFor(uint32_t threads, bool pinned, std::span<const NumaNode> nodes,
                                 std::span<const uint32_t> allowed) {
  const bool several = nodes.size() > 1 && threads > 1;
  const NumaNode all = {0, {allowed.begin(), allowed.end()}};
  const std::span<const NumaNode> used = several ? nodes : std::span(&all, 1);
  const std::vector<UpdateSeat> cpus = CpusInTurns(used);
  std::vector<UpdateSeat> seats(threads);
  for (uint32_t i = 0; i < threads && !cpus.empty(); ++i) {
    seats[i] = cpus[i % cpus.size()];
    if (pinned) continue;
    seats[i].cpus = several ? used[seats[i].home].cpus : std::vector<uint32_t>();
  }
  return seats;
}

ShardHomes HomesOf(std::span<const UpdateSeat> seats) {
  std::vector<std::vector<uint32_t>> cpus;
  std::vector<uint32_t> home_of_shard;
  for (const UpdateSeat& seat : seats) {
    cpus.resize(std::max<size_t>(cpus.size(), seat.home + 1));
    cpus[seat.home].insert(cpus[seat.home].end(), seat.cpus.begin(), seat.cpus.end());
    home_of_shard.push_back(seat.home);
  }
  if (cpus.size() < 2) return {};
  return {std::move(cpus), std::move(home_of_shard)};
}

}  // namespace luwu
