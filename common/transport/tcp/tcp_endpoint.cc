#include "common/transport/tcp/tcp_endpoint.h"

#include <utility>

namespace luwu::transport {

TcpEndpoint::TcpEndpoint(LinkParts parts, std::vector<UniqueFd> sockets)
    : Link(Kind::kTcp, std::move(parts)) {
  for (UniqueFd& socket : sockets) {
    connections_.push_back(std::make_unique<TcpConnection>(this, loop(), std::move(socket)));
  }
}

TcpEndpoint::~TcpEndpoint() { Close(); }

Status TcpEndpoint::Attach() {
  for (const auto& connection : connections_) RETURN_IF_ERROR(connection->Attach());
  return OkStatus();
}

void TcpEndpoint::Detach(const Status& result, RequestList* outstanding) {
  for (const auto& connection : connections_) connection->Detach(result, outstanding);
}

const LocalRegion* TcpEndpoint::FindExposed(RegionId region) const {
  for (const ExposedRegion& candidate : exposed()) {
    if (candidate.id == region) return candidate.region.get();
  }
  return nullptr;
}

uint64_t TcpEndpoint::served_bytes() const {
  uint64_t bytes = 0;
  for (const auto& connection : connections_) bytes += connection->served_bytes();
  return bytes;
}

void TcpEndpoint::Post(const PostedOp& op, uint32_t lane, Request* request) {
  Status status = connections_[lane % connections_.size()]->Post(op, request);
  if (status.ok()) {
    LeavePost();
  } else {
    FinishPost(request, std::move(status));
  }
}

void TcpEndpoint::PostWrite(const PostedOp& op, uint32_t lane, Request* request) {
  if (!EnterPost(request)) return;
  Status status = CheckSource(op.source, op.remote.bytes());
  if (status.ok()) status = CheckRemote(op.remote, Access::kRemoteWrite);
  if (!status.ok()) return FinishPost(request, std::move(status));
  Post(op, lane, request);
}

void TcpEndpoint::Write(std::span<const ConstByteSpan> source, RemoteSpan target, uint32_t lane,
                        Request* request) {
  PostedOp op;
  op.remote = target;
  op.source = source;
  PostWrite(op, lane, request);
}

void TcpEndpoint::WriteWithNotify(std::span<const ConstByteSpan> source, RemoteSpan target,
                                  uint32_t lane, uint32_t immediate, Request* request) {
  PostedOp op;
  op.notify = true;
  op.immediate = immediate;
  op.remote = target;
  op.source = source;
  PostWrite(op, lane, request);
}

void TcpEndpoint::Read(RemoteSpan source, ByteSpan target, uint32_t lane, Request* request) {
  if (!EnterPost(request)) return;
  Status status = OkStatus();
  if (target.size() != source.bytes()) {
    status = Error(ErrorCode::kInvalidArgument, "the destination has {} bytes, the source has {}",
                   target.size(), source.bytes());
  } else {
    status = CheckRemote(source, Access::kRemoteRead);
  }
  if (!status.ok()) return FinishPost(request, std::move(status));
  PostedOp op;
  op.op = Op::kRead;
  op.remote = source;
  op.target = target.data();
  Post(op, lane, request);
}

void TcpEndpoint::Notify(uint32_t lane, uint32_t immediate, Request* request) {
  if (!EnterPost(request)) return;
  PostedOp op;
  op.op = Op::kNotify;
  op.notify = true;
  op.immediate = immediate;
  Post(op, lane, request);
}

}  // namespace luwu::transport
