// The Load and Read streams, and the status of all nodes.
#include <algorithm>
#include <utility>

#include "client/src/session_rpc.h"
#include "client/src/session_rpc_impl.h"
#include "common/rpc/cluster_checks.h"
#include "common/rpc/status_json.h"

namespace luwu::client {
namespace {

// Keeps a stream's context among the calls that Shutdown cancels.
class ActiveContext {
 public:
  ActiveContext(NodeRpc::Impl& impl, TimePoint deadline) : impl_(impl) {
    rpc::SetDeadline(&context_, deadline);
    entered_ = impl_.Enter(&context_);
  }
  ~ActiveContext() {
    if (entered_) impl_.Leave(&context_);
  }
  ActiveContext(const ActiveContext&) = delete;
  ActiveContext& operator=(const ActiveContext&) = delete;

  bool entered() const { return entered_; }
  grpc::ClientContext* get() { return &context_; }

 private:
  NodeRpc::Impl& impl_;
  grpc::ClientContext context_;
  bool entered_ = false;
};

class GrpcLoadStream final : public NodeRpc::LoadStream {
 public:
  GrpcLoadStream(NodeRpc::Impl& impl, uint64_t session_id, TimePoint deadline)
      : impl_(impl), context_(impl, deadline) {
    request_.set_session_id(session_id);
    if (context_.entered()) writer_ = impl_.tensors->Load(context_.get(), &response_);
  }
  ~GrpcLoadStream() override {
    if (writer_ == nullptr || finished_) return;
    context_.get()->TryCancel();
    writer_->Finish();
  }

  bool Write(const Piece& piece) override {
    if (writer_ == nullptr) return false;
    constexpr uint64_t kValuesMax = rpc::kPieceBytesMax / sizeof(float);
    for (uint64_t done = 0; done < piece.values.size();) {
      const uint64_t count = std::min<uint64_t>(kValuesMax, piece.values.size() - done);
      const auto bytes = std::as_bytes(piece.values.subspan(done, count));
      request_.set_layer(piece.layer);
      request_.set_shard(piece.shard);
      request_.set_offset(piece.offset + done);
      request_.mutable_values()->resize(bytes.size());
      std::copy(bytes.begin(), bytes.end(),
                std::as_writable_bytes(std::span(*request_.mutable_values())).begin());
      if (!writer_->Write(request_)) return false;
      done += count;
      sent_ += count;
    }
    return true;
  }

  Status Finish() override {
    if (writer_ == nullptr) return impl_.Cancelled();
    writer_->WritesDone();
    finished_ = true;
    const grpc::Status status = writer_->Finish();
    if (!status.ok()) return impl_.Failure(status, *context_.get());
    if (response_.elements() == sent_) return OkStatus();
    return Error(ErrorCode::kCorrupt, "the daemon took {} of the {} elements sent; load them again",
                 response_.elements(), sent_);
  }

 private:
  NodeRpc::Impl& impl_;
  ActiveContext context_;
  uint64_t sent_ = 0;  // elements
  v1::LoadRequest request_;
  v1::LoadResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::LoadRequest>> writer_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<NodeRpc::LoadStream> NodeRpc::OpenLoad(TimePoint deadline) {
  return std::make_unique<GrpcLoadStream>(*impl_, session_id_, deadline);
}

Status NodeRpc::Read(const ReadArguments& arguments, TimePoint deadline,
                     const std::function<Status(const ReadPiece&)>& sink) {
  v1::ReadRequest request;
  request.set_job(arguments.job);
  request.set_epoch(arguments.epoch);
  request.set_layer(arguments.layer);
  request.set_quantity(static_cast<v1::Quantity>(arguments.quantity));
  request.set_timeout_ms(MillisecondsUntil(deadline));
  ActiveContext context(*impl_, deadline);
  if (!context.entered()) return impl_->Cancelled();
  const auto reader = impl_->tensors->Read(context.get(), request);
  v1::ReadResponse response;
  Status verdict;
  while (verdict.ok() && reader->Read(&response)) {
    ReadPiece piece{.shard = response.shard(),
                    .offset = response.offset(),
                    .version = response.version(),
                    .bytes = std::move(*response.mutable_values())};
    verdict = sink(piece);
  }
  if (!verdict.ok()) context.get()->TryCancel();
  const grpc::Status status = reader->Finish();
  if (!verdict.ok()) return Annotate(verdict, impl_->name());
  return status.ok() ? OkStatus() : impl_->Failure(status, *context.get());
}

std::string ClusterStatusJson(const std::vector<NodeRpc*>& nodes, const std::vector<Node>& names,
                              TimePoint deadline) {
  const auto answers = FanOut<v1::DaemonStatus>(nodes.size(), [&](size_t i, auto done) {
    NodeRpc::Impl& impl = nodes[i]->impl();
    impl.Unary<v1::DaemonStatus, v1::GetStatusResponse>(
        {.deadline = deadline}, v1::GetStatusRequest(),
        [&impl](auto* context, auto* request, auto* response, auto on_done) {
          impl.status->async()->GetStatus(context, request, response, std::move(on_done));
        },
        [](const v1::GetStatusResponse& response) {
          return StatusOr<v1::DaemonStatus>(response.status());
        },
        std::move(done));
  });
  std::vector<rpc::NodeStatus> statuses;
  for (size_t i = 0; i < nodes.size(); ++i) {
    statuses.push_back({names[i].name, names[i].control_address, answers[i], names[i].weight > 0});
  }
  rpc::AddClusterChecks(&statuses);
  constexpr int kIndent = 2;
  return rpc::JsonText(rpc::StatusJson(statuses), kIndent);
}

}  // namespace luwu::client
