#include "tests/bench/spill/raw_device.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace luwu::bench {
namespace {

Status Failed(const char* what, int error) {
  return Error(ErrorCode::kInternal, "raw device: {}: {}", what, std::strerror(error));
}

}  // namespace

StatusOr<std::unique_ptr<RawDevice>> RawDevice::Create(const RawDeviceOptions& options) {
  std::unique_ptr<RawDevice> device(new RawDevice(options));
  RETURN_IF_ERROR(device->Start());
  // The first writes to allocated blocks cost more than all later ones.
  for (int half = 0; half < 2; ++half) {
    const StatusOr<double> written = device->Overwrite();
    if (!written.ok()) return written.status();
  }
  return device;
}

RawDevice::~RawDevice() {
  if (ring_made_) ::io_uring_queue_exit(&ring_);
  ::unlink(options_.path.c_str());
}

Status RawDevice::Start() {
  fd_ = UniqueFd(::open(options_.path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!fd_.valid()) return Failed("open with O_DIRECT", errno);
  if (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(2 * options_.pass_bytes)) != 0)
    return Failed("fallocate", errno);
  ASSIGN_OR_RETURN(memory_, AllocateHuge(options_.depth * options_.block_bytes));
  uint64_t x = 1;
  for (std::byte& byte : memory_.span()) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(x >> 56);
  }
  if (const int made = ::io_uring_queue_init(options_.depth, &ring_, 0); made < 0)
    return Failed("io_uring", -made);
  ring_made_ = true;
  const iovec all{memory_.data(), memory_.bytes()};
  if (const int done = ::io_uring_register_buffers(&ring_, &all, 1); done < 0)
    return Failed("registering buffers", -done);
  slots_.resize(options_.depth);
  for (uint32_t i = 0; i < options_.depth; ++i)
    slots_[i].data = memory_.data() + i * options_.block_bytes;
  return OkStatus();
}

Status RawDevice::Issue(Slot* slot, bool write, uint64_t offset) {
  io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
  const auto bytes = static_cast<unsigned>(options_.block_bytes);
  if (write)
    ::io_uring_prep_write_fixed(sqe, fd_.get(), slot->data, bytes, offset, 0);
  else
    ::io_uring_prep_read_fixed(sqe, fd_.get(), slot->data, bytes, offset, 0);
  ::io_uring_sqe_set_data(sqe, slot);
  slot->writing = write;
  const int submitted = ::io_uring_submit(&ring_);
  return submitted == 1 ? OkStatus() : Failed("submit", -submitted);
}

StatusOr<double> RawDevice::Pass(bool read, bool write) {
  const uint64_t blocks = options_.pass_bytes / options_.block_bytes;
  const uint64_t to = options_.pass_bytes - from_;
  const auto begin = std::chrono::steady_clock::now();
  uint64_t next = 0;
  uint64_t in_flight = 0;
  const auto start_next = [&](Slot* slot) {
    slot->block = next++;
    ++in_flight;
    const uint64_t offset = slot->block * options_.block_bytes;
    return Issue(slot, !read, (read ? from_ : to) + offset);
  };
  for (Slot& slot : slots_) {
    if (next < blocks) RETURN_IF_ERROR(start_next(&slot));
  }
  while (in_flight > 0) {
    io_uring_cqe* cqe = nullptr;
    if (const int got = ::io_uring_wait_cqe(&ring_, &cqe); got < 0) return Failed("wait", -got);
    auto* const slot = static_cast<Slot*>(::io_uring_cqe_get_data(cqe));
    const int result = cqe->res;
    ::io_uring_cqe_seen(&ring_, cqe);
    if (result != static_cast<int>(options_.block_bytes))
      return Failed("transfer", result < 0 ? -result : EIO);
    if (read && write && !slot->writing) {
      RETURN_IF_ERROR(Issue(slot, true, to + slot->block * options_.block_bytes));
      continue;
    }
    --in_flight;
    if (next < blocks) RETURN_IF_ERROR(start_next(slot));
  }
  if (write) {
    if (::fdatasync(fd_.get()) != 0) return Failed("fdatasync", errno);
    from_ = to;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

StatusOr<double> RawDevice::Overwrite() { return Pass(false, true); }
StatusOr<double> RawDevice::Read() { return Pass(true, false); }
StatusOr<double> RawDevice::ReadAndWrite() { return Pass(true, true); }

StatusOr<RawDevice::Transfer> RawDevice::SecondsFor(uint64_t read_bytes, uint64_t written_bytes) {
  const auto pass = static_cast<double>(options_.pass_bytes);
  const auto both_bytes = static_cast<double>(std::min(read_bytes, written_bytes));
  const double rest_bytes = static_cast<double>(std::max(read_bytes, written_bytes)) - both_bytes;
  ASSIGN_OR_RETURN(const double both, ReadAndWrite());
  Transfer transfer = {.seconds = both * both_bytes / pass, .both_gb_per_s = pass / both / 1e9};
  if (rest_bytes > 0) {
    ASSIGN_OR_RETURN(const double rest, read_bytes > written_bytes ? Read() : Overwrite());
    transfer.seconds += rest * rest_bytes / pass;
    transfer.rest_gb_per_s = pass / rest / 1e9;
  }
  return transfer;
}

}  // namespace luwu::bench
