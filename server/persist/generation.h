// What the step module and the storage say to each other about stored state. Plain values.
#pragma once

#include <cstdint>
#include <string>

namespace luwu::persist {

inline constexpr uint64_t kIoAlignment = 4096;  // of every buffer that is read into or written from

// How much of a crash a commit is to survive: of the process, or of the machine.
enum class SyncLevel : uint8_t { kLogged, kSynced };

// A stored copy of one shard's state. Written once, never overwritten while anything refers to it.
struct Generation {
  uint64_t step = 0;     // the version of the weights it belongs to
  uint64_t applied = 0;  // updates the shard has had
  uint64_t place = 0;    // the engine's; means nothing to others
  uint64_t bytes = 0;    // of the payload, padding not counted
  uint32_t crc32c = 0;   // of the payload

  bool operator==(const Generation&) const = default;
};

struct ShardEntry {
  uint32_t shard = 0;  // local index
  Generation generation;

  bool operator==(const ShardEntry&) const = default;
};

// A step that the node can go back to: every local shard has a stored generation, the newest one
// whose step is not above the point's.
struct Point {
  uint64_t step = 0;  // the first step that is computed with these weights
  uint64_t epoch =
      0;  // of the job when the point was made; (step, epoch) names a point on all nodes
  float loss_scale = 1;       // of that step
  uint32_t finite_steps = 0;  // applied in a row before it, as the loss scale counts them
  uint64_t skipped_steps = 0;

  bool operator==(const Point&) const = default;
};

// A point that is kept until it is deleted by name.
struct Checkpoint {
  std::string name;
  Point point;
  int64_t created_unix_s = 0;

  bool operator==(const Checkpoint&) const = default;
};

// A job as the catalogue knows it.
struct JobRecord {
  std::string name;
  uint64_t epoch = 0;
  std::string spec;                // serialized by the caller, opaque here
  uint64_t nodes_fingerprint = 0;  // of the node list that the job was created with
  std::string restoring = {};      // see JobStorage::NoteRestore

  bool operator==(const JobRecord&) const = default;
};

}  // namespace luwu::persist
