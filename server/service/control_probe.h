// Finds out that the control port is dead: gRPC never accepts again after it has met the limit of
// open files once, while connections that it has go on. Each beat opens a connection to the port
// and looks whether gRPC has greeted on the one of the beat before, without waiting for anything.
//
// Owned by the daemon; used on its housekeeping thread only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/unique_fd.h"

namespace luwu {

class ControlProbe {
 public:
  // `hello`: what a client says first, for ports that only answer (TLS); empty: they greet.
  explicit ControlProbe(std::string address, std::string hello = "")
      : address_(std::move(address)), hello_(std::move(hello)) {}

  // True when the port has accepted nobody for kSilentBeatsMax beats in a row. Beats in which no
  // connection can be opened (no descriptor is left) do not count: nothing could be done.
  bool IsDead();

  static constexpr uint32_t kSilentBeatsMax = 3;

 private:
  // On a connection that may not be there yet: then it is tried again in the next beat.
  void SayHello();

  const std::string address_;  // "host:port"
  const std::string hello_;
  bool said_ = false;  // on this connection
  UniqueFd connection_;
  uint32_t silent_beats_ = 0;
};

}  // namespace luwu
