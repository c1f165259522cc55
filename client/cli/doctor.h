// luwuctl doctor: examines this host, and the daemons unless --local is given; prints every finding
// with what to do about it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "client/cli/doctor_checks.h"
#include "client/cli/options.h"
#include "client/cli/stop_signals.h"

namespace luwu::cli {

// Prints to stdout. kExitOk when nothing is ERR, kExitFailure when no daemon answers, else
// kExitUnhealthy.
int Doctor(const Options& options, StopSignals* stop);

std::string DoctorText(const DoctorRows& rows);
nlohmann::ordered_json DoctorJson(const DoctorRows& rows);

}  // namespace luwu::cli
