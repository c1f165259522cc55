#include "server/service/local_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/transport/socket.h"

namespace luwu {
namespace {

constexpr int kNoDescriptorPauseMs = 100;
constexpr size_t kGroupsMax = 65536;  // of Linux

StatusOr<CallerNames> UserOf(int socket) {
  ucred credentials = {};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return Error(ErrorCode::kUnavailable, "the peer's user is not known: {}",
                 transport::ErrnoText(errno));
  }
  CallerNames user = {
      .local = {fmt::format("uid:{}", credentials.uid), fmt::format("gid:{}", credentials.gid)}};
  std::vector<gid_t> groups(kGroupsMax);
  bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) {
    return Error(ErrorCode::kUnavailable, "the peer's groups are not known: {}",
                 transport::ErrnoText(errno));
  }
  groups.resize(bytes / sizeof(gid_t));
  for (const gid_t group : groups) {
    if (group != credentials.gid) user.local.push_back(fmt::format("gid:{}", group));
  }
  return user;
}

class ThreadedListener final : public LocalListener {
 public:
  ThreadedListener(std::string path, UniqueFd listener, UniqueFd wake, Take take)
      : path_(std::move(path)),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        take_(std::move(take)),
        thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), "luwu-local");
  }
  ~ThreadedListener() override {
    const uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
    ::unlink(path_.c_str());
  }

 private:
  // False when the listener ends.
  bool Await(bool connection, int timeout_ms) {
    std::array<pollfd, 2> waits = {{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                    {.fd = listener_.get(), .events = POLLIN, .revents = 0}}};
    ::poll(waits.data(), connection ? 2 : 1, timeout_ms);
    return waits[0].revents == 0;
  }

  void Run() {
    while (Await(true, -1)) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        HandOn(std::move(socket));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!Await(false, kNoDescriptorPauseMs)) return;  // the connection stays in the backlog
      }
    }
  }

  void HandOn(UniqueFd socket) {
    const StatusOr<CallerNames> user = UserOf(socket.get());
    if (user.ok()) {
      take_(std::move(socket), *user);
    } else {
      LogWarning("local_connection_refused", "why=\"{}\"", ToString(user.status()));
    }
  }

  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd wake_;
  const Take take_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

StatusOr<std::unique_ptr<LocalListener>> LocalListener::Start(const std::string& path, Take take) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return Error(ErrorCode::kUnavailable, "eventfd: {}", transport::ErrnoText(errno));
  }
  ASSIGN_OR_RETURN(UniqueFd listener, transport::ListenUnix(path));
  return std::make_unique<ThreadedListener>(path, std::move(listener), std::move(wake),
                                            std::move(take));
}

}  // namespace luwu
