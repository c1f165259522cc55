#include "client/cli/place_checks.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "client/cli/table.h"
#include "common/transport/socket.h"

namespace luwu::cli {

using doctor::Err;
using doctor::Finding;
using doctor::Ok;
using doctor::Topic;
using doctor::Warn;

namespace {

constexpr uint64_t kSpaceBytesMin = uint64_t{1} << 30;

std::string TextOf(const std::vector<PortHolder>& holders) {
  std::string text;
  for (const PortHolder& holder : holders) {
    text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", holder.program, holder.pid);
  }
  return text;
}

Finding PortInUse(Topic topic, const PortFacts& facts) {
  const std::string port = facts.address.substr(facts.address.rfind(':') + 1);
  if (facts.holders.empty()) {
    return Warn(topic, facts.address + " is in use, by a process that this user may not see",
                fmt::format("as root: ss -ltnp 'sport = :{}'; it should be luwud", port));
  }
  const auto is_daemon = [](const PortHolder& holder) { return holder.program == "luwud"; };
  if (std::all_of(facts.holders.begin(), facts.holders.end(), is_daemon)) {
    return Ok(topic, fmt::format("{} is held by {}", facts.address, TextOf(facts.holders)));
  }
  return Err(topic, fmt::format("{} is in use by {}", facts.address, TextOf(facts.holders)),
             "stop that program, or give the node another port in the [[nodes]] of all daemons");
}

}  // namespace

Finding CheckPort(Topic topic, const PortFacts& facts) {
  const std::string elsewhere =
      "write an address of this host into [[nodes]] (ip addr shows them), or look at [node] name";
  if (!facts.unknown.empty()) {
    return Err(topic, fmt::format("'{}' cannot be used: {}", facts.address, facts.unknown),
               elsewhere);
  }
  if (facts.error == 0) return Ok(topic, facts.address + " is free");
  if (facts.error == EADDRINUSE) return PortInUse(topic, facts);
  if (facts.error == EACCES) {
    return Err(topic, facts.address + " is a port for root only",
               "choose a port from 1024 on, in the [[nodes]] of all daemons");
  }
  return Err(
      topic,
      fmt::format("{} cannot be listened on: {}", facts.address, transport::ErrnoText(facts.error)),
      elsewhere);
}

Finding CheckShmSocket(const SocketFacts& facts) {
  constexpr Topic kTopic = Topic::kShmSocket;
  if (facts.exists && !facts.is_socket) {
    return Err(kTopic, facts.path + " is there and is no socket",
               "move that file away, or change shm in [[nodes]]");
  }
  if (!facts.folder_exists) {
    return Err(kTopic, "the folder of " + facts.path + " does not exist",
               "make it (RuntimeDirectory= in the unit), or change shm in [[nodes]]");
  }
  if (facts.answers) return Ok(kTopic, facts.path + " is listened on");
  if (!facts.folder_writable) {
    return Err(kTopic, "this user may not write to the folder of " + facts.path,
               "make it writable for the user of luwud, or run the doctor as that user");
  }
  return Ok(kTopic, facts.path + (facts.exists ? " is left over; luwud replaces it" : " is free"));
}

Finding CheckDirectory(const DirectoryFacts& facts) {
  constexpr Topic kTopic = Topic::kDataDirectory;
  if (facts.exists && !facts.is_directory) {
    return Err(kTopic, facts.path + " is no directory", "move it away, or change storage.path");
  }
  if (!facts.writable) {
    return Err(kTopic, "this user may not write to " + facts.nearest,
               "give it to the user of luwud, or run the doctor as that user");
  }
  if (!facts.file_system.empty()) {
    return Warn(kTopic, fmt::format("{} is on {}", facts.path, facts.file_system),
                "put storage.path on ext4 or xfs of a local disk: what is kept must outlive the "
                "host, and be written past the page cache");
  }
  const std::string summary =
      fmt::format("{}{}, {} free", facts.path, facts.exists ? "" : " will be made",
                  ShortBytes(facts.free_bytes));
  const uint64_t promised = facts.used ? 0 : facts.budget_bytes;
  if (facts.free_bytes < std::max(kSpaceBytesMin, promised)) {
    const std::string budget =
        promised == 0 ? "" : fmt::format(", budget {}", ShortBytes(promised));
    return Warn(kTopic, summary + budget, "free space there, or lower storage.budget");
  }
  return Ok(kTopic, summary);
}

}  // namespace luwu::cli
