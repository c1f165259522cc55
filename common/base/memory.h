// Big memory, mapped and touched once. First touch of a page costs tens of microseconds on virtual
// machines, so nothing in the data path may be the first to touch a page: both kinds of block here
// come back populated and zero.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu {

// Owns one mmap.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  ByteSpan span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

inline constexpr uint64_t kHugePageBytes = 2 * kMiB;

// Touches whole pages: those that begin in `memory`, which begins with one.
Status TouchPages(ByteSpan memory);
// How a block is touched when it is not TouchPages(block) on the calling thread: on a host of
// several NUMA nodes a page lies where it is touched first.
using Toucher = std::function<Status(ByteSpan block)>;

// Private anonymous memory in transparent huge pages, from a huge page's beginning on when it has
// that size. Zero bytes give an empty mapping.
StatusOr<Mapping> AllocateHuge(uint64_t bytes, const Toucher& touch = {});

// A memfd of exactly `bytes` (a multiple of the page size), sealed against resizing, mapped and
// touched. `name` shows in /proc/PID/maps.
struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;
};
StatusOr<SharedMemory> CreateShared(const std::string& name, uint64_t bytes,
                                    const Toucher& touch = {});

// Adds the seal that refuses every later writable mapping or write; existing mappings stay.
Status SealReadOnly(const SharedMemory& memory);

// Maps a memfd received from a peer, touching it. Refuses one that is not sealed against
// shrinking (its owner could make every access fault) or not exactly `bytes` long.
StatusOr<Mapping> MapPeerMemory(int fd, uint64_t bytes, bool writable);

}  // namespace luwu
