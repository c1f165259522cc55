#include "server/store/shard_homes.h"

#include <algorithm>

#include "common/base/numa.h"

namespace luwu {

std::vector<ShardHomes::Part> ShardHomes::PartsOf(uint32_t home, std::vector<Start> starts,
                                                  uint64_t bytes, uint64_t page_bytes) const {
  std::sort(starts.begin(), starts.end(),
            [](const Start& a, const Start& b) { return a.offset < b.offset; });
  std::vector<Part> parts;
  uint64_t begin = 0;
  uint32_t owner = 0;
  const auto add = [&](uint64_t end) {
    if (owner != home || end <= begin) return;
    if (!parts.empty() && parts.back().end == begin) {
      parts.back().end = end;
    } else {
      parts.push_back({begin, end});
    }
  };
  for (const Start& start : starts) {
    const uint64_t page = std::min(AlignUp(start.offset, page_bytes), bytes);
    add(page);
    begin = page;
    owner = HomeOf(start.shard);
  }
  add(bytes);
  return parts;
}

Toucher ShardHomes::TouchFor(std::vector<Start> starts, uint64_t page_bytes) const {
  if (homes() == 1) return {};
  return [homes = *this, starts = std::move(starts), page_bytes](ByteSpan block) {
    for (uint32_t home = 0; home < homes.homes(); ++home) {
      const StayOnScope stay(homes.cpus_[home]);
      for (const Part& part : homes.PartsOf(home, starts, block.size(), page_bytes)) {
        RETURN_IF_ERROR(TouchPages(block.subspan(part.begin, part.end - part.begin)));
      }
    }
    return OkStatus();
  };
}

Toucher ShardHomes::TouchInTurns(uint64_t bytes) const {
  std::vector<Start> starts;
  for (uint32_t i = 0; i * kHugePageBytes < bytes && homes() > 1; ++i) {
    starts.push_back({i * kHugePageBytes, i});
  }
  return TouchFor(std::move(starts), kHugePageBytes);
}

}  // namespace luwu
