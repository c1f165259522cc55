// Judges the places that a daemon's configuration names. Pure functions.
#pragma once

#include "client/cli/place_facts.h"
#include "common/doctor/finding.h"

namespace luwu::cli {

// `topic` is kControlPort or kDataPort.
doctor::Finding CheckPort(doctor::Topic topic, const PortFacts& facts);
doctor::Finding CheckShmSocket(const SocketFacts& facts);
doctor::Finding CheckDirectory(const DirectoryFacts& facts);

}  // namespace luwu::cli
