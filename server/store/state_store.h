// Where the optimizer state of a node's shards lives: the narrow door between the update pipeline
// and the state tiers. Memory for jobs that fit; for others a part of the shards is on disk and
// passes through staging buffers.
//
// Each shard has one current generation of its arrays (master first) and, when the job can undo a
// step, a second one that the update of the open step is written to. A job without undo updates in
// place: `next` equals `current`. Frozen shards have a master only, in one generation. A shard that
// is on disk can always undo: its buffer is updated in place (`next` equals `current`), and what is
// stored stays as it was until Flip.
//
// An update: Request (until it says that the state is at hand) -> Acquire, compute -> Release, or
// Drop when nothing of it is to be kept -> Flip when the step is applied, Drop when it is not.
// Loading: Open -> Acquire, write -> Keep; in the end Flush.
//
// Threads: any; calls for one shard are ordered by its job. Readers may look at `current` of a
// resident shard while it is being updated. Flip comes when no update of the shard is in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "server/optim/optimizer.h"
#include "server/store/stored_generation.h"

namespace luwu {

struct ShardState {
  optim::StateArrays current = {};
  optim::StateArrays next = {};
  // Not null: what the served copy of the new version is to be written to as well, once more.
  std::byte* served = nullptr;
};

// A reader's hold on the current generation. `stored` is null for a resident shard, whose arrays
// the job has to keep from being overwritten.
struct StatePin {
  optim::StateArrays arrays = {};
  std::shared_ptr<StoredGeneration> stored;
};

// Told by the tiers, on an I/O thread, with no lock of theirs held.
class StateListener {
 public:
  virtual ~StateListener() = default;
  // What Request asked for is at hand.
  virtual void OnStateLoaded(uint32_t index) = 0;
  // State cannot be read or written: the job cannot go on.
  virtual void OnStateFailed(const Status& why) = 0;
};

struct SpillCounters {
  uint64_t loads = 0;
  uint64_t read_ahead = 0;  // loads that nobody had asked for yet
  uint64_t wasted = 0;      // ... whose buffer was taken before they were used
  uint64_t waits = 0;       // requests that had to wait
  uint64_t stores = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double busy_seconds = 0;  // with a transfer under way
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  // Before anything else. Stop: it is not told anything any more, and transfers have ended.
  virtual void SetListener(StateListener* listener) = 0;
  virtual void Stop() = 0;

  // Whether the shard is always in memory.
  virtual bool resident(uint32_t index) const = 0;
  virtual uint64_t bytes() const = 0;  // of memory
  virtual SpillCounters counters() const = 0;

  // Stage "load state": whether the shard can be acquired now. If not, the listener is told when.
  virtual bool Request(uint32_t index) = 0;
  // What was requested is not needed for now: its buffer may go to another shard.
  virtual void Forgo(uint32_t index) = 0;
  virtual ShardState Acquire(uint32_t index) = 0;
  // Stage "store state": what was written to `next` is complete.
  virtual void Release(uint32_t index) = 0;
  // What was written to `next`, or is being written, is of no use.
  virtual void Drop(uint32_t index) = 0;
  // The step was applied: next and current change places.
  virtual void Flip(uint32_t index) = 0;
  // The step has ended without an update of the shard: do not read it ahead yet.
  virtual void Pass(uint32_t index) = 0;

  // Like Request, but waits.
  virtual Status Open(uint32_t index) = 0;
  // `current` was changed and stays the current one.
  virtual void Keep(uint32_t index) = 0;
  // Loading has ended: what was kept is stored, and from now on shards are read ahead.
  virtual Status Flush() = 0;

  // Going on from a point: what the shard's current generation is. Never of a resident one.
  virtual void SetCurrent(uint32_t index, std::shared_ptr<StoredGeneration> generation) = 0;

  virtual StatePin Pin(uint32_t index) = 0;
  // The arrays of a pin; `scratch` may have to hold them. Waits for the disk. Not under a lock.
  virtual StatusOr<optim::StateArrays> ReadPinned(uint32_t index, const StatePin& pin,
                                                  Mapping* scratch) = 0;
};

}  // namespace luwu
