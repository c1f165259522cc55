#include "client/src/read_unit.h"

#include <algorithm>
#include <span>

#include "common/wire/board.h"

namespace luwu::client {
namespace {

constexpr uint64_t kBackoffMsMax = 16;
constexpr uint32_t kParts = 2;

}  // namespace

void ReadUnit::BeginPost(const MonitorLock&) {
  if (state_ == State::kFree) attempts_ = 0;
  state_ = State::kPosted;
  status_ = OkStatus();
  pending_ = kParts;
  ++attempts_;
}

void ReadUnit::Post(const Link& link) {
  payload_part_.unit = header_part_.unit = this;
  const uint64_t width = DTypeBytes(fabric_->plan().spec().served_dtype);
  const uint64_t payload =
      plan.place.payload_offset + (plan.range.first - plan.shard->range.first) * width;
  const uint32_t lane = plan.shard->shard;
  link.endpoint().Read({kRegionWeights, payload, plan.target.size()}, plan.target, lane,
                       &payload_part_);
  const ByteSpan header = std::as_writable_bytes(std::span(&header_, 1));
  link.endpoint().Read({kRegionWeights, plan.place.header_offset, header.size()}, header, lane,
                       &header_part_);
}

void ReadUnit::OnPart(const Status& status) {
  MonitorLock lock(fabric_->monitor());
  if (!status.ok() && status_.ok()) status_ = status;
  if (--pending_ > 0) return;
  state_ = status_.ok() ? State::kArrived : State::kFailed;
  // The first repeat is immediate, further ones back off.
  const uint64_t shift = std::min<uint32_t>(attempts_, 10);
  retry_at_ = attempts_ <= 1 ? std::chrono::steady_clock::now()
                             : DeadlineAfter(std::min(kBackoffMsMax, uint64_t{1} << shift));
  waiter_->Wake(lock);
}

}  // namespace luwu::client
