// The bytes of everything in the catalogue: keys and values of jobs, branches, points, generations
// and checkpoints. Integers in values are little-endian, in keys big-endian, so that they sort.
// Every value ends with a CRC32C over its key and itself: a record that was damaged, or that stands
// under another key, is found at each read (kCorrupt, naming the record). docs/DURABILITY.md has
// the tables. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "server/persist/generation.h"

namespace luwu::persist {

inline constexpr uint32_t kRecordFormat = 1;
inline constexpr uint64_t kGenerationRecordBytes = 64;

// A line of history. A job begins with branch 1; going back to a point begins a new one, which
// shares with its parent what the parent had up to `fork_step`. So checkpoints of an abandoned line
// keep their meaning.
struct Branch {
  uint32_t number = 0;
  uint32_t parent = 0;     // 0: none
  uint64_t fork_step = 0;  // the newest step of the parent that belongs to this one
};

struct StoredJob {
  uint32_t number = 0;
  JobRecord record;
  uint64_t reserve_bytes = 0;
  uint32_t branch = 0;  // the current one
};

struct StoredGeneration {
  uint32_t shard = 0;
  uint32_t branch = 0;
  Generation generation;

  bool operator==(const StoredGeneration&) const = default;
};

struct StoredPoint {
  uint32_t branch = 0;
  Point point;
};

struct StoredCheckpoint {
  uint32_t branch = 0;
  Checkpoint checkpoint;
};

// The first byte of a key.
enum class RecordKind : char {
  kCounter = 'N',
  kChange = 'S',
  kJob = 'J',
  kBranch = 'B',
  kGeneration = 'G',
  kPoint = 'P',
  kCheckpoint = 'C',
  kInlineValue = 'V',
};

// All keys of a kind and job begin so.
std::string JobPrefix(RecordKind kind, uint32_t job);

std::string CounterKey();
std::string ChangeKey();
std::string JobKey(uint32_t job);
std::string BranchKey(uint32_t job, uint32_t branch);
std::string GenerationKey(uint32_t job, const StoredGeneration& stored);
std::string PointKey(uint32_t job, const StoredPoint& stored);
std::string CheckpointKey(uint32_t job, const std::string& name);
std::string ValueKey(uint32_t job, uint64_t slot);

std::string EncodeCounter(uint32_t next_job);
// The number of the newest change of the catalogue, written with each: see promises.h.
std::string EncodeChange(uint64_t change);
std::string EncodeJob(const StoredJob& job);
std::string EncodeBranch(uint32_t job, const Branch& branch);
std::string EncodeGeneration(uint32_t job, const StoredGeneration& stored);
std::string EncodePoint(uint32_t job, const StoredPoint& stored);
std::string EncodeCheckpoint(uint32_t job, const StoredCheckpoint& stored);

// Of a key that begins with the kind; *job is set to the number in the key.
StatusOr<uint32_t> DecodeCounter(std::string_view key, std::string_view value);
StatusOr<uint64_t> DecodeChange(std::string_view key, std::string_view value);
StatusOr<StoredJob> DecodeJob(std::string_view key, std::string_view value);
StatusOr<Branch> DecodeBranch(std::string_view key, std::string_view value, uint32_t* job);
StatusOr<StoredGeneration> DecodeGeneration(std::string_view key, std::string_view value,
                                            uint32_t* job);
StatusOr<StoredPoint> DecodePoint(std::string_view key, std::string_view value, uint32_t* job);
StatusOr<StoredCheckpoint> DecodeCheckpoint(std::string_view key, std::string_view value,
                                            uint32_t* job);
// kCorrupt when it is no key of a value.
Status JobOfValueKey(std::string_view key, uint32_t* job);

}  // namespace luwu::persist
