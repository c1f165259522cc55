// What the doctor needs of a daemon's configuration file. Reads those keys only and leaves the rest
// to `luwud --check-config`, because luwuctl and the daemon share no schema. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/transport/verbs/verbs_options.h"

namespace luwu::cli {

struct DoctorConfig {
  std::string node;
  std::string control_address;
  std::string data_address;  // empty: serves no tcp
  std::string shm_path;      // empty: no shared memory
  std::string storage_path;  // empty: nothing on disk
  uint64_t storage_budget_bytes = 0;
  uint64_t memory_budget_bytes = 0;
  transport::VerbsOptions rdma = {};
};

// kNotFound, kPermission, or kInvalidArgument when it is no TOML or does not list its own node.
StatusOr<DoctorConfig> ReadDoctorConfig(const std::string& path);

}  // namespace luwu::cli
