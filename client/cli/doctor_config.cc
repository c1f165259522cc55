#include "client/cli/doctor_config.h"

#include "common/config/config_reader.h"

namespace luwu::cli {
namespace {

transport::VerbsOptions ReadRdma(ConfigReader table) {
  transport::VerbsOptions rdma;
  const std::string use = table.GetString("use", "auto");
  rdma.use = use == "on"    ? transport::VerbsUse::kOn
             : use == "off" ? transport::VerbsUse::kOff
                            : transport::VerbsUse::kAuto;
  rdma.device = table.GetString("device", "");
  rdma.port = static_cast<uint32_t>(table.GetU64("port", {.max = 254}, 0));
  rdma.mtu = static_cast<uint32_t>(table.GetU64("mtu", {.max = 4096}, 0));
  if (table.Has("gid_index")) {
    rdma.gid_index = static_cast<int32_t>(table.GetU64("gid_index", {.max = 65535}));
  }
  return rdma;
}

}  // namespace

StatusOr<DoctorConfig> ReadDoctorConfig(const std::string& path) {
  ASSIGN_OR_RETURN(ConfigReader root, ConfigReader::ReadFile(path));
  DoctorConfig config;
  config.node = root.Table("node").GetString("name", "");
  config.memory_budget_bytes = root.Table("memory").GetBytes("budget", {}, 0);
  ConfigReader storage = root.Table("storage");
  config.storage_path = storage.GetString("path", "");
  config.storage_budget_bytes = storage.GetBytes("budget", {}, 0);
  config.rdma = ReadRdma(root.Table("rdma"));
  for (ConfigReader node : root.Tables("nodes")) {
    if (node.GetString("name", "") != config.node) continue;
    config.control_address = node.GetString("control", "");
    if (node.GetU64("weight", {}, 1) == 0) return config;
    config.data_address = node.GetString("data", "");
    config.shm_path = node.GetString("shm", "");
    return config;
  }
  return Error(ErrorCode::kInvalidArgument, "{}: node '{}' is not in [[nodes]]", path, config.node);
}

}  // namespace luwu::cli
