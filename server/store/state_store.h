// Where the optimizer state of a node's shards lives: the narrow door between the update pipeline
// and a state tier. Memory is the only tier today; a tier that spills implements the same four
// calls.
//
// Each shard has one current generation of its arrays (master first) and, when the job can undo a
// step, a second one that the update of the open step is written to. A job without undo updates in
// place: `next` equals `current`. Frozen shards have a master only, in one generation.
//
// Threads: any. Readers may acquire a shard while it is being updated (they look at `current`);
// Flip comes when no update of the shard is in progress.
#pragma once

#include <cstdint>

#include "server/optim/optimizer.h"

namespace luwu {

struct ShardState {
  optim::StateArrays current = {};
  optim::StateArrays next = {};
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  // Stage "load state": the shard's arrays are in memory until Release.
  virtual ShardState Acquire(uint32_t index) = 0;
  // Stage "store state": what was written to `next` is complete.
  virtual void Release(uint32_t index) = 0;
  // The step was applied: next and current change places.
  virtual void Flip(uint32_t index) = 0;
  virtual uint64_t bytes() const = 0;
};

}  // namespace luwu
