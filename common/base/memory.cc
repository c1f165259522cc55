#include "common/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace luwu {
namespace {

constexpr uint64_t kMappingBytesMax = uint64_t{1} << 47;  // of a process's address space

Status SystemError(const char* call, uint64_t bytes) {
  const int error = errno;
  return Error(error == ENOMEM ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
               "{} of {} failed: {}", call, HumanBytes(bytes), std::strerror(error));
}

std::byte* MapAnonymous(uint64_t bytes) {
  void* raw = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return raw == MAP_FAILED ? nullptr : static_cast<std::byte*>(raw);
}

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status TouchPages(ByteSpan memory) {
  if (memory.empty() || ::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) {
    return OkStatus();
  }
  return SystemError("touching memory", memory.size());
}

StatusOr<Mapping> AllocateHuge(uint64_t bytes, const Toucher& touch) {
  if (bytes == 0) return Mapping();
  if (bytes > kMappingBytesMax) {
    return Error(ErrorCode::kResourceExhausted, "{} cannot be mapped", HumanBytes(bytes));
  }
  const uint64_t wanted = AlignUp(bytes, bytes >= kHugePageBytes ? kHugePageBytes : 4 * kKiB);
  // Map one huge page more than wanted and cut both ends, so that the block starts on a boundary.
  const uint64_t reserved = wanted + kHugePageBytes;
  std::byte* raw = MapAnonymous(reserved);
  if (raw == nullptr) return SystemError("mmap", bytes);
  const uint64_t head =
      AlignUp(reinterpret_cast<uintptr_t>(raw), kHugePageBytes) - reinterpret_cast<uintptr_t>(raw);
  if (head > 0) ::munmap(raw, head);
  if (head < kHugePageBytes) ::munmap(raw + head + wanted, kHugePageBytes - head);
  Mapping mapping(raw + head, wanted);
  ::madvise(mapping.data(), wanted, MADV_HUGEPAGE);
  RETURN_IF_ERROR(touch ? touch(mapping.span()) : TouchPages(mapping.span()));
  return mapping;
}

StatusOr<SharedMemory> CreateShared(const std::string& name, uint64_t bytes, const Toucher& touch) {
  SharedMemory memory;
  memory.fd = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd.valid()) return SystemError("memfd_create", bytes);
  if (::ftruncate(memory.fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError("sizing a memfd", bytes);
  }
  if (::fcntl(memory.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return SystemError("sealing a memfd", bytes);
  }
  void* raw = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd.get(), 0);
  if (raw == MAP_FAILED) return SystemError("mapping a memfd", bytes);
  memory.mapping = Mapping(static_cast<std::byte*>(raw), bytes);
  ::madvise(raw, bytes, MADV_HUGEPAGE);
  RETURN_IF_ERROR(touch ? touch(memory.mapping.span()) : TouchPages(memory.mapping.span()));
  return memory;
}

Status SealReadOnly(const SharedMemory& memory) {
  if (::fcntl(memory.fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return SystemError("sealing a memfd against writers", memory.mapping.bytes());
  }
  return OkStatus();
}

StatusOr<Mapping> MapPeerMemory(int fd, uint64_t bytes, bool writable) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return SystemError("fstat of a peer's region", bytes);
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return Error(ErrorCode::kInvalidArgument, "the peer's region has {} bytes, {} were announced",
                 info.st_size, bytes);
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "the peer's region is not a memfd sealed against shrinking");
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* raw = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (raw == MAP_FAILED) return SystemError("mapping a peer's region", bytes);
  Mapping mapping(static_cast<std::byte*>(raw), bytes);
  ::madvise(raw, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  return mapping;
}

}  // namespace luwu
