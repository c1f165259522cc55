#include "common/rpc/status_bridge.h"

#include <optional>

#include "luwu/v1/types.pb.h"

namespace luwu::rpc {
namespace {

std::optional<v1::ErrorDetail> DetailOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(kErrorDetailKey);
  if (found == trailers.end()) return std::nullopt;
  v1::ErrorDetail detail;
  if (!detail.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()))) {
    return std::nullopt;
  }
  return detail;
}

// A newer peer may send a code that this program does not know.
bool IsKnown(int32_t code) {
  const auto known = static_cast<ErrorCode>(code);
  return known != ErrorCode::kOk && ErrorCodeName(known) != "unknown error";
}

}  // namespace

grpc::Status ToGrpc(grpc::ServerContextBase* context, const Status& status,
                    const std::string& node) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorDetail detail;
  detail.set_code(static_cast<int32_t>(CodeOf(status)));
  detail.set_node(node);
  context->AddTrailingMetadata(kErrorDetailKey, detail.SerializeAsString());
  std::string message = MessageOf(status);
  if (message.size() > kErrorMessageMax) {
    message.resize(kErrorMessageMax);
    message += "...";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return OkStatus();
  const std::optional<v1::ErrorDetail> detail = DetailOf(context);
  if (detail && IsKnown(detail->code())) {
    return MakeError(static_cast<ErrorCode>(detail->code()), status.error_message());
  }
  const Status plain(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  return MakeError(CodeOf(plain), status.error_message());
}

std::string NodeOfError(const grpc::ClientContext& context) {
  const std::optional<v1::ErrorDetail> detail = DetailOf(context);
  return detail ? detail->node() : std::string();
}

}  // namespace luwu::rpc
