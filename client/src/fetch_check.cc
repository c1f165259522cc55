// Which bytes a fetch may read, and whether the bytes that it read are right.
#include <cstring>

#include "client/src/fetch_engine.h"
#include "common/base/crc32c.h"

namespace luwu::client {

StatusOr<bool> FetchEngine::IsReadable(const MonitorLock&, const FetchCall& call,
                                       const ShardPlan& shard) {
  const uint64_t published = fabric_->node(shard.node).board().published(shard.local_index);
  if (published == 0) return false;
  if (!fabric_->plan().layers()[call.layer].trainable) return true;
  const uint64_t newest = published - 1;
  if (newest < call.version) return false;
  if (newest - call.version <= 1) return true;
  return Error(ErrorCode::kStaleVersion, "{}: the daemon keeps versions {} and {}",
               Describe(call, shard), newest - 1, newest);
}

Status FetchEngine::DeadlineError(const MonitorLock& lock, const Job& job) {
  NodeLink& node = fabric_->node(job.blocked_node);
  if (const auto down = fabric_->FirstDown(lock)) return *down;
  if (job.unloaded != nullptr) {
    return Error(ErrorCode::kDeadline,
                 "{}: the copy is not in the node's memory and was asked for; its disk is too slow "
                 "for the deadline, or its window of {} copies too small for all who read",
                 Describe(job.call, *job.unloaded),
                 fabric_->plan().map(job.unloaded->node).window_slots());
  }
  if (job.late != nullptr) {
    const uint64_t published = node.board().published(job.late->local_index);
    const std::string newest = published == 0 ? "no version is loaded yet"
                                              : fmt::format("the newest is {}", published - 1);
    return Error(ErrorCode::kDeadline, "{}: the version is not there: {}",
                 Describe(job.call, *job.late), newest);
  }
  return Error(ErrorCode::kDeadline,
               "fetch of layer '{}' version {}: reads from {} did not finish in time",
               fabric_->plan().spec().layers[job.call.layer].name, job.call.version, node.Name());
}

bool FetchEngine::WantsCrc(const MonitorLock& lock, const FetchCall& call, const ShardPlan& shard,
                           bool whole) {
  if (!fabric_->progress(lock).IsProtected(call.layer, call.version)) return true;
  switch (fabric_->options().verify) {
    case VerifyPayload::kOverTcp:
      return whole && !fabric_->node(shard.node).is_shm();
    case VerifyPayload::kAlways:
      return true;
    case VerifyPayload::kNever:
      break;
  }
  return false;
}

ConstByteSpan FetchEngine::MappedPayload(const ShardPlan& shard, const CopyPlace& place,
                                         const Link& link) const {
  return link.weights().subspan(place.payload_offset, shard.range.elements * DTypeBytes(served()));
}

ShardHeader FetchEngine::MappedHeader(const CopyPlace& place, const Link& link) const {
  ShardHeader header;
  std::memcpy(&header, link.weights().subspan(place.header_offset, sizeof header).data(),
              sizeof header);
  return header;
}

StatusOr<bool> FetchEngine::CheckCopy(const FetchCall& call, const ShardPlan& shard,
                                      const CopyPlace& place, const ShardHeader& header,
                                      ConstByteSpan payload) {
  const ShardHeaderExpectation expected{
      .epoch = fabric_->options().epoch,
      .version = StoredVersion(call),
      .layer = call.layer,
      .shard = shard.shard,
      .dtype = served(),
      .payload_bytes = shard.range.elements * DTypeBytes(served()),
      .residence = place.residence};
  Status status = CheckShardHeader(header, expected);
  // Whatever the header says, it may be that of the next copy, half written.
  if (!status.ok() && place.residence != 0) return false;
  if (CodeOf(status) == ErrorCode::kStaleVersion && header.version < expected.version) {
    status = Error(ErrorCode::kCorrupt, "its header says version {} after the board announced {}",
                   header.version, call.version);
  }
  if (status.ok() && !payload.empty() && Crc32c(payload) != header.payload_crc32c) {
    status = Error(ErrorCode::kCorrupt, "the payload does not match its CRC32C");
  }
  if (status.ok()) return true;
  MonitorLock lock(fabric_->monitor());
  if (!fabric_->progress(lock).IsProtected(call.layer, call.version)) {
    return Error(ErrorCode::kStaleVersion, "{}: it was being replaced while it was read ({})",
                 Describe(call, shard), MessageOf(status));
  }
  return Annotate(status, Describe(call, shard));
}

std::string FetchEngine::Describe(const FetchCall& call, const ShardPlan& shard) const {
  return fmt::format("layer '{}' version {}, shard {} at node {}",
                     fabric_->plan().spec().layers[call.layer].name, call.version, shard.shard,
                     fabric_->plan().nodes()[shard.node].name);
}

}  // namespace luwu::client
