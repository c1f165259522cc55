// The transport for hosts without RDMA: the peer's progress thread performs the read or the write.
// Requests of lane i travel on connection i modulo the number of connections.
#pragma once

#include <memory>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/transport/tcp/connection.h"

namespace luwu::transport {

class TcpEndpoint final : public Link, public ConnectionOwner {
 public:
  // `sockets` in the order of their connection numbers; at least one.
  TcpEndpoint(LinkParts parts, std::vector<UniqueFd> sockets);
  ~TcpEndpoint() override;

  void Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
             Request* request) override;
  void WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                       uint32_t immediate, Request* request) override;
  void Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) override;
  // The peer's memory cannot be mapped.
  std::optional<ByteSpan> MapWritable(RegionId) override { return std::nullopt; }
  std::optional<ConstByteSpan> MapReadable(RegionId) override { return std::nullopt; }
  void Notify(uint32_t lane, uint32_t immediate, Request* request) override;
  uint64_t served_bytes() const override;

 protected:
  Status Attach() override;
  void Detach(const Status& result, RequestList* outstanding) override;

 private:
  // ConnectionOwner
  const LocalRegion* FindExposed(RegionId region) const override;
  void OnNotify(uint32_t immediate) override { DeliverNotify(immediate); }
  void OnDone(RequestList* done) override { DeliverCompletions(done); }
  void OnBroken(const Status& why) override { Fail(why); }

  void PostWrite(const PostedOp& op, uint32_t lane, Request* request);
  // Leaves the gate.
  void Post(const PostedOp& op, uint32_t lane, Request* request);

  std::vector<std::unique_ptr<TcpConnection>> connections_;
};

}  // namespace luwu::transport
