// The same-host transport. The peer's regions are mapped here, so a read or a write is a copy in
// the calling thread and completes inside the posting call. The Unix socket carries nothing but
// 4-byte little-endian immediates after the handshake; its end-of-file is how a dead peer is
// noticed.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"

namespace luwu::transport {

// The peer's region, mapped writable only when it may be written.
struct MappedRegion {
  RegionDescriptor descriptor;
  Mapping mapping;
};

class ShmEndpoint final : public Link {
 public:
  ShmEndpoint(LinkParts parts, UniqueFd socket, std::vector<MappedRegion> regions);
  ~ShmEndpoint() override;

  void Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
             Request* request) override;
  void WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                       uint32_t immediate, Request* request) override;
  void Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) override;
  std::optional<ByteSpan> MapWritable(RegionId region) override;
  std::optional<ConstByteSpan> MapReadable(RegionId region) override;
  void Notify(uint32_t lane, uint32_t immediate, Request* request) override;

 protected:
  Status Attach() override;
  void Detach(const Status& result, RequestList* outstanding) override;
  bool OnSocket(uint32_t events) override;

 private:
  // Immediates that did not fit the socket buffer.
  static constexpr size_t kBacklogMax = 16 * 1024;

  const MappedRegion* Find(RegionId region, Access access) const;
  Status Copy(std::span<const ConstByteSpan> source, const RemoteSpan& target);
  Status SendImmediate(uint32_t immediate);
  Status FlushBacklog();
  // False when the socket has no more bytes for now (it reports the next ones).
  StatusOr<bool> ReceiveImmediates();

  const std::vector<MappedRegion> regions_;

  Mutex mutex_;
  UniqueFd socket_ LUWU_GUARDED_BY(mutex_);  // closed on the progress thread only
  int fd_ = -1;                              // the same, for the progress thread
  bool attached_ LUWU_GUARDED_BY(mutex_) = false;
  // A byte ring of whole immediates, of which the first may be partly sent.
  std::vector<std::byte> backlog_ LUWU_GUARDED_BY(mutex_);
  size_t backlog_first_ LUWU_GUARDED_BY(mutex_) = 0;
  size_t backlog_bytes_ LUWU_GUARDED_BY(mutex_) = 0;

  // Progress thread.
  std::array<std::byte, 4096> received_ = {};
  size_t received_bytes_ = 0;  // of an incomplete immediate
  bool ended_ = false;         // the peer's end is reported: read until it shows
};

}  // namespace luwu::transport
