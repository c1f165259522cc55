#include "server/service/stored_job.h"

#include "common/rpc/job_spec_proto.h"
#include "luwu/v1/jobs.pb.h"

namespace luwu {

std::string SerializeStoredJob(const StoredJob& job) {
  v1::StoredJob proto;
  *proto.mutable_spec() = rpc::ToProto(job.spec);
  proto.set_lineage(job.lineage);
  proto.set_memory_bytes(job.memory_bytes);
  proto.set_owner(job.owner);
  return proto.SerializeAsString();
}

StatusOr<StoredJob> ParseStoredJob(const std::string& bytes) {
  v1::StoredJob proto;
  if (!proto.ParseFromString(bytes) || !proto.has_spec()) {
    return Error(ErrorCode::kCorrupt, "its spec cannot be parsed");
  }
  StoredJob job;
  ASSIGN_OR_RETURN(job.spec, rpc::FromProto(proto.spec()));
  RETURN_IF_ERROR(ValidateJobSpec(job.spec));
  job.lineage = proto.lineage();
  job.memory_bytes = proto.memory_bytes();
  job.owner = proto.owner();
  return job;
}

uint64_t PlacementFingerprint(const std::vector<Node>& nodes) {
  std::vector<Node> placed;
  for (const Node& node : nodes) {
    placed.emplace_back();
    placed.back().name = node.name;
    placed.back().weight = node.weight;
  }
  return FingerprintOf(placed);
}

}  // namespace luwu
