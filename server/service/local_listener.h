// The Unix socket of the control plane: accepts connections, asks the kernel who has connected, and
// hands both on. gRPC 1.51 listens on Unix sockets too, but tells nobody the user at the other end.
//
// Owned by the control server. One thread, "luwu-local", on which connections are handed on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/config/access_rule.h"

namespace luwu {

class LocalListener {
 public:
  // `user` is "uid:1000", then "gid:..." of its groups: as they were when it connected.
  using Take = std::function<void(UniqueFd socket, const CallerNames& user)>;

  // As transport::ListenUnix: everybody may connect, and `take` decides who stays.
  static StatusOr<std::unique_ptr<LocalListener>> Start(const std::string& path, Take take);
  virtual ~LocalListener() = default;  // ends the thread, and removes the socket
};

}  // namespace luwu
