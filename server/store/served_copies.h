// The copies of a job's weights on this node that workers read with one-sided reads, and the region
// they lie in. Of each trainable shard there are two, of even and odd versions in turn; a frozen
// one has one. They are all in memory (served_weights.h), or memory is a window on them
// (served_window.h).
//
// Writing a new version: Begin takes the old bytes away from readers and says where the new ones
// go; Finish when they are there, or Abandon; Publish once the version may be read. Only then may
// the board announce it.
//
// Threads: any; calls for one shard are made by one thread at a time, save those of the window.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/transport/region.h"

namespace luwu {

// Called by a window, on an I/O thread, with no lock of its own held.
struct CopyHooks {
  std::function<void()> moved;                // TakeMoved has something
  std::function<void(const Status&)> failed;  // to read or write: the job cannot go on
};

// A copy, by local shard and parity of the version.
struct CopyId {
  uint32_t index = 0;
  uint32_t parity = 0;
  bool operator==(const CopyId&) const = default;
};

// What has passed between window and disk.
struct WindowCounters {
  uint64_t wants = 0;  // by workers, for a copy that was not in memory
  uint64_t loads = 0;
  uint64_t stores = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

class ServedCopies {
 public:
  virtual ~ServedCopies() = default;

  virtual std::shared_ptr<transport::LocalRegion> region() const = 0;
  virtual uint64_t PayloadBytes(uint32_t index) const = 0;
  // Where a version lies, readable or not; null when it is not always in memory.
  virtual std::byte* Payload(uint32_t index, uint64_t version) const = 0;

  // Where the bytes of `version` are to be written to. May wait for a part of the window.
  // kCancelled: the job ends.
  virtual StatusOr<std::byte*> Begin(uint32_t index, uint64_t version) = 0;
  virtual void Finish(uint32_t index, uint64_t version) = 0;
  virtual void Abandon(uint32_t index, uint64_t version) = 0;
  // The bytes of `version` are those of `version + 1`, too. Returns their CRC32C; what is Begin and
  // Finish of other versions has been done.
  virtual uint32_t CopyToNext(uint32_t index, uint64_t version) = 0;
  virtual void Publish(uint32_t index, uint64_t version, uint32_t payload_crc32c) = 0;

  // ---- window only -----------------------------------------------------------------------------
  // Before anything else.
  virtual void SetHooks(CopyHooks /*hooks*/) {}
  // Whoever waits in Begin, or comes later, gets kCancelled.
  virtual void Cancel() {}
  // No hook is called any more, and transfers have ended.
  virtual void Stop() {}
  // A worker wants the copy that has been published last with this parity: brings it into memory.
  // True: it is there, and TakeMoved has it; else `moved` will be called, if there is one.
  virtual bool Want(CopyId /*copy*/) { return false; }
  // Where it is (WindowPlace::word); 0: not in memory.
  virtual uint64_t Place(CopyId /*copy*/) const { return 0; }
  // The copies whose place may have changed since the last call; some more than once.
  virtual std::vector<CopyId> TakeMoved() { return {}; }
  virtual WindowCounters counters() const { return {}; }
};

}  // namespace luwu
