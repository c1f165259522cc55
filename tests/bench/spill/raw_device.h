// The ceiling of everything that stores: the device itself, through io_uring and O_DIRECT, from
// memory in huge pages, on a file that was allocated and written before. No checksums, no
// catalogue, nothing but transfers in flight and one fdatasync at the end of a pass that writes.
// Used by benchmarks, on one thread.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::bench {

struct RawDeviceOptions {
  std::string path;                // a file that is made and removed
  uint64_t pass_bytes = 0;         // what a pass moves each way; the file has two halves of it
  uint64_t block_bytes = 1 << 20;  // of one transfer; pass_bytes is a multiple
  uint32_t depth = 32;             // transfers under way
};

class RawDevice {
 public:
  // Allocates and writes the file.
  static StatusOr<std::unique_ptr<RawDevice>> Create(const RawDeviceOptions& options);
  ~RawDevice();
  RawDevice(const RawDevice&) = delete;
  RawDevice& operator=(const RawDevice&) = delete;

  // Seconds of one pass.
  StatusOr<double> Overwrite();
  StatusOr<double> Read();
  // Every block is read from one half and written to the other, which change places.
  StatusOr<double> ReadAndWrite();

  // Seconds for any number of bytes each way, from passes made now: what goes both ways at the
  // speed of ReadAndWrite, the rest at that of the pass that only reads or only writes.
  struct Transfer {
    double seconds = 0;
    double both_gb_per_s = 0;  // of each way
    double rest_gb_per_s = 0;  // 0 when there is no rest
  };
  StatusOr<Transfer> SecondsFor(uint64_t read_bytes, uint64_t written_bytes);

 private:
  struct Slot {
    std::byte* data = nullptr;
    uint64_t block = 0;
    bool writing = false;
  };
  explicit RawDevice(const RawDeviceOptions& options) : options_(options) {}
  Status Start();
  Status Issue(Slot* slot, bool write, uint64_t offset);
  StatusOr<double> Pass(bool read, bool write);

  const RawDeviceOptions options_;
  UniqueFd fd_;
  Mapping memory_;
  io_uring ring_{};
  bool ring_made_ = false;
  std::vector<Slot> slots_;
  uint64_t from_ = 0;  // offset of the half that holds the newest
};

}  // namespace luwu::bench
