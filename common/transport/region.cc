#include "common/transport/region.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace luwu::transport {

StatusOr<std::shared_ptr<LocalRegion>> LocalRegion::Create(const std::string& name, uint64_t bytes,
                                                           Access access, const Toucher& touch) {
  if (bytes == 0) {
    return Error(ErrorCode::kInvalidArgument, "region '{}' must have at least one byte", name);
  }
  auto memory = CreateShared(name, bytes, touch);
  if (!memory.ok()) return Annotate(memory.status(), fmt::format("region '{}'", name));
  if (access == Access::kRemoteRead) {
    RETURN_IF_ERROR(Annotate(SealReadOnly(*memory), fmt::format("region '{}'", name)));
  }
  // A peer holds the descriptor too; without this it could add seals of its own.
  if (::fcntl(memory->fd.get(), F_ADD_SEALS, F_SEAL_SEAL) != 0) {
    return Error(ErrorCode::kInternal, "sealing region '{}' failed: {}", name,
                 std::strerror(errno));
  }
  struct Made : LocalRegion {  // make_shared needs a constructor that it may call
    Made(SharedMemory memory, Access access) : LocalRegion(std::move(memory), access) {}
  };
  return std::make_shared<Made>(*std::move(memory), access);
}

void LocalRegion::Keep(std::shared_ptr<const void> attachment) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(attachment));
}

}  // namespace luwu::transport
