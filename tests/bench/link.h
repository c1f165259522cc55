// One end of the socket between the bench driver and a child process: one JSON document per
// datagram. A command is {"do": NAME, ...}; its reply holds "error" when it failed.
#pragma once

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace luwu::bench {

using Json = nlohmann::json;

// Asked while waiting; true ends the wait with kCancelled.
using StopCheck = bool (*)();
bool NeverStop();

class Link {
 public:
  Link() = default;
  explicit Link(UniqueFd fd) : fd_(std::move(fd)) {}

  Status Send(const Json& message);
  // kDeadline, kUnavailable when the peer is gone, kCancelled.
  StatusOr<Json> Receive(TimePoint deadline, StopCheck stop = NeverStop);

 private:
  UniqueFd fd_;
};

// Seconds of CLOCK_MONOTONIC, comparable between processes of this host.
double MonotonicSeconds();

}  // namespace luwu::bench
