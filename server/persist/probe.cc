#include "server/persist/probe.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/memory.h"
#include "common/base/sync.h"
#include "server/persist/generation.h"

namespace luwu::persist {
namespace {

// 0 or a positive errno.
int TransferOne(DiskQueue* queue, Transfer transfer) {
  Mutex mutex;
  CondVar changed;
  bool ended = false;
  int outcome = 0;
  transfer.done = [&](int error) {
    const MutexLock lock(mutex);
    ended = true;
    outcome = error;
    changed.NotifyAll();
  };
  queue->Submit(std::move(transfer));
  const MutexLock lock(mutex);
  while (!ended) changed.Wait(mutex);
  return outcome;
}

// Null when the block came back as it was written.
const char* WriteAndRead(DiskQueue* queue, BlockFile* file, std::byte* block, int* error) {
  std::byte* const copy = block + kIoAlignment;
  for (uint64_t i = 0; i < kIoAlignment; ++i) block[i] = static_cast<std::byte>(i * 131 + 7);
  *error = -file->Allocate(0, kIoAlignment);
  if (*error != 0) return "allocating";
  *error = TransferOne(queue, {Transfer::Kind::kWrite, file, block, kIoAlignment, 0, {}});
  if (*error != 0) return "writing";
  *error = -file->Sync();
  if (*error != 0) return "syncing";
  *error = TransferOne(queue, {Transfer::Kind::kRead, file, copy, kIoAlignment, 0, {}});
  if (*error != 0) return "reading";
  *error = EBADMSG;
  return std::memcmp(block, copy, kIoAlignment) == 0 ? nullptr : "comparing";
}

}  // namespace

StatusOr<Probe> ProbeDirectory(const std::string& folder, BlockFileSystem* files) {
  const std::string path = folder + "/probe";
  Probe probe;
  ASSIGN_OR_RETURN(const Mapping memory, AllocateHuge(2 * kIoAlignment));
  OpenedFile opened = files->Open(path);
  const char* what = "creating";
  int error = opened.error;
  if (error == 0) {
    probe.direct = opened.direct;
    probe.queue = opened.file->descriptor() >= 0 ? MakeUringQueue() : nullptr;
    probe.uring = probe.queue != nullptr;
    if (probe.uring)
      what = WriteAndRead(probe.queue.get(), opened.file.get(), memory.data(), &error);
    // A kernel may offer io_uring and refuse it for this file system.
    if (!probe.uring || (what != nullptr && (error == EINVAL || error == EOPNOTSUPP))) {
      probe.queue = MakeThreadQueue();
      probe.uring = false;
      what = WriteAndRead(probe.queue.get(), opened.file.get(), memory.data(), &error);
    }
    if (what == nullptr) error = 0;
  }
  files->Remove(path);
  if (error == 0) return probe;
  const bool full = error == ENOSPC || error == EDQUOT;
  return Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kCorrupt,
               "self-test of the storage: {} {}: {}", what, path, std::strerror(error));
}

}  // namespace luwu::persist
