// What others get to know of a job of the registry. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/tensor/job_spec.h"
#include "server/persist/job_storage.h"

namespace luwu {

enum class JobPhase : uint8_t { kCreating, kLive, kRecovering, kLost };

// A job, and not what has its name after it was deleted: the lineage, its first epoch, tells them
// apart. 0: whichever has the name.
struct JobKey {
  std::string name;
  uint64_t lineage = 0;
};

// A job that is known but not served.
struct AbsentJob {
  std::string name;
  uint64_t epoch = 0;
  uint64_t lineage = 0;
  JobPhase phase = JobPhase::kRecovering;
  std::string detail;         // what it waits for, or why it is lost
  bool unusable = false;      // lost whatever the other nodes have
  bool working = false;       // this node prepares it or reads it, or has told others to
  std::string restoring;      // the checkpoint that it was being brought back to, if any
  bool lacks_memory = false;  // what it waits for
};

struct DescribedJob {
  JobSpec spec;
  uint64_t epoch = 0;
  uint64_t lineage = 0;
  uint64_t first_step = 0;  // under this epoch
  JobPhase phase = JobPhase::kLive;
  std::string detail;
};

// A point to be kept on this node under a name.
struct CheckpointRequest {
  std::string job;
  uint64_t epoch = 0;
  std::string name;
  uint64_t step = 0;
  int64_t created_unix_s = 0;
};

// What is needed to read what is stored of a job on this node.
struct StoredPart {
  JobSpec spec;
  uint64_t epoch = 0;
  std::shared_ptr<persist::JobStorage> storage;
};

}  // namespace luwu
