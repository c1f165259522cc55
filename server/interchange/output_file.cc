#include "server/interchange/output_file.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "server/interchange/file_io.h"

namespace luwu::interchange {
namespace {

// Writing to the device begins while the rest is still read, so that little is left for the end.
constexpr uint64_t kWritebackBytes = 16 * kMiB;
// Less than that is not worth a wait for the device.
constexpr uint64_t kDirectBytesMin = 64 * kKiB;

bool OnBlock(const std::byte* address) {
  return std::bit_cast<uintptr_t>(address) % OutputFile::kBlockBytes == 0;
}

}  // namespace

StatusOr<OutputFile> OutputFile::Open(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  ASSIGN_OR_RETURN(file.fd_, OpenForWriting(path));
  file.direct_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_DIRECT | O_CLOEXEC));
  return file;
}

Status OutputFile::Write(uint64_t offset, ConstByteSpan bytes) {
  const uint64_t end = offset + bytes.size();
  const uint64_t first = AlignUp(offset, kBlockBytes);
  const uint64_t last = end / kBlockBytes * kBlockBytes;
  if (!direct_.valid() || last < first + kDirectBytesMin ||
      !OnBlock(bytes.data() + (first - offset))) {
    return WriteCached(offset, bytes);
  }
  const ConstByteSpan blocks = bytes.subspan(first - offset, last - first);
  if (!WriteAt({path_, direct_.get(), first}, blocks).ok()) {
    // Some file systems refuse here only; any other reason the cached write meets again.
    direct_ = UniqueFd();
    return WriteCached(offset, bytes);
  }
  RETURN_IF_ERROR(WriteCached(offset, bytes.first(first - offset)));
  return WriteCached(last, bytes.subspan(last - offset));
}

Status OutputFile::WriteCached(uint64_t offset, ConstByteSpan bytes) {
  if (bytes.empty()) return OkStatus();
  RETURN_IF_ERROR(WriteAt({path_, fd_.get(), offset}, bytes));
  if (bytes.size() < kBlockBytes) return OkStatus();  // an edge; Sync takes it along
  if (unsynced_end_ == 0) unsynced_begin_ = offset;
  unsynced_begin_ = std::min(unsynced_begin_, offset);
  unsynced_end_ = std::max(unsynced_end_, offset + bytes.size());
  const uint64_t unsynced = unsynced_end_ - unsynced_begin_;
  if (unsynced < kWritebackBytes) return OkStatus();
  // A hint: that everything is there is what Sync says.
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(unsynced_begin_),
                          static_cast<off_t>(unsynced), SYNC_FILE_RANGE_WRITE);
  unsynced_begin_ = unsynced_end_ = 0;
  return OkStatus();
}

Status OutputFile::Sync() { return SyncData(path_, fd_.get()); }

}  // namespace luwu::interchange
