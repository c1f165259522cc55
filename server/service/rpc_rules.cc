#include "server/service/rpc_rules.h"

#include <algorithm>
#include <array>

namespace luwu {
namespace {

using enum Role;
using enum JobIn;

constexpr bool kDaemonsToo = true;

// A trainer may delete its own jobs: it can overwrite their weights anyway, and takes back what it
// has created when another node refuses. What reads or writes the daemons' files is an operator's.
constexpr std::array kRules = {
    RpcRule{"/grpc.health.v1.Health/Check", kObserver, kNowhere, kDaemonsToo},
    RpcRule{"/grpc.health.v1.Health/Watch", kObserver, kNowhere, kDaemonsToo},
    RpcRule{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kObserver},

    RpcRule{"/luwu.v1.JobService/ListNodes", kObserver, kNowhere, kDaemonsToo},
    RpcRule{"/luwu.v1.JobService/Describe", kObserver, kJob},
    RpcRule{"/luwu.v1.JobService/CreateOrJoin", kTrainer, kSpec},
    RpcRule{"/luwu.v1.JobService/Delete", kTrainer, kJob},

    RpcRule{"/luwu.v1.SessionService/Open", kTrainer, kJob},
    RpcRule{"/luwu.v1.SessionService/ExchangeRegions", kTrainer, kSession},
    RpcRule{"/luwu.v1.SessionService/Heartbeat", kTrainer, kSession},
    RpcRule{"/luwu.v1.SessionService/Close", kTrainer, kSession},

    RpcRule{"/luwu.v1.StepService/Begin", kTrainer, kSession},
    RpcRule{"/luwu.v1.StepService/Commit", kTrainer, kSession},

    RpcRule{"/luwu.v1.TensorService/Load", kTrainer, kSession},
    RpcRule{"/luwu.v1.TensorService/FinishLoad", kTrainer, kSession},
    RpcRule{"/luwu.v1.TensorService/Read", kTrainer, kJob},

    RpcRule{"/luwu.v1.StatusService/GetStatus",
            kObserver},  // of the jobs that the caller may touch
    RpcRule{"/luwu.v1.DoctorService/Diagnose", kObserver},
    RpcRule{"/luwu.v1.DoctorService/ReadClock", kObserver},

    RpcRule{"/luwu.v1.CheckpointService/List", kObserver, kJob},
    RpcRule{"/luwu.v1.CheckpointService/Create", kOperator, kJob},
    RpcRule{"/luwu.v1.CheckpointService/Delete", kOperator, kJob},
    RpcRule{"/luwu.v1.CheckpointService/Restore", kOperator, kJob},

    RpcRule{"/luwu.v1.InterchangeService/BeginImport", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/Import", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/FinishImport", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/AbandonImport", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/DescribeState", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/CheckExport", kOperator},
    RpcRule{"/luwu.v1.InterchangeService/BeginExport", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/WriteExport", kOperator, kJob},
    RpcRule{"/luwu.v1.InterchangeService/FinishExport", kOperator},  // a draft's name is random
    RpcRule{"/luwu.v1.InterchangeService/AbandonExport", kOperator},
    RpcRule{"/luwu.v1.InterchangeService/GetProgress", kOperator},

    RpcRule{"/luwu.v1.PeerService/ReportStep", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/ReportDurable", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/PrepareRollback", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/Rollback", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/MakePoint", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/KeepCheckpoint", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/DropCheckpoint", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/ListStoredPoints", kDaemon, kJob},
    RpcRule{"/luwu.v1.PeerService/AskRecovery", kDaemon, kJob},
};

}  // namespace

std::span<const RpcRule> RpcRules() { return kRules; }

const RpcRule* FindRpcRule(std::string_view method) {
  const auto* found = std::find_if(kRules.begin(), kRules.end(),
                                   [&](const RpcRule& rule) { return rule.method == method; });
  return found == kRules.end() ? nullptr : found;
}

bool Allows(const RpcRule& rule, Role role) {
  if (role == kDaemon) return rule.daemons || rule.least == kDaemon;
  return rule.least != kDaemon && role >= rule.least;
}

}  // namespace luwu
