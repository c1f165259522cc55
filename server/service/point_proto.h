// Points and checkpoints as messages. Pure functions.
#pragma once

#include "luwu/v1/peers.pb.h"
#include "server/cluster/recovery_round.h"

namespace luwu {

inline v1::StoredPoint ToProto(const persist::Point& point) {
  v1::StoredPoint proto;
  proto.set_step(point.step);
  proto.set_epoch(point.epoch);
  proto.set_loss_scale(point.loss_scale);
  proto.set_finite_steps(point.finite_steps);
  proto.set_skipped_steps(point.skipped_steps);
  return proto;
}

inline persist::Point FromProto(const v1::StoredPoint& proto) {
  return {.step = proto.step(),
          .epoch = proto.epoch(),
          .loss_scale = proto.loss_scale(),
          .finite_steps = proto.finite_steps(),
          .skipped_steps = proto.skipped_steps()};
}

// `Response` has the fields points and checkpoints.
template <typename Response>
void FillStored(const StoredPoints& stored, Response* response) {
  for (const persist::Point& point : stored.points) *response->add_points() = ToProto(point);
  for (const persist::Checkpoint& checkpoint : stored.checkpoints) {
    v1::StoredCheckpoint* added = response->add_checkpoints();
    added->set_name(checkpoint.name);
    *added->mutable_point() = ToProto(checkpoint.point);
    added->set_created_unix_s(checkpoint.created_unix_s);
  }
}

template <typename Response>
StoredPoints StoredOf(const Response& response) {
  StoredPoints stored;
  for (const v1::StoredPoint& point : response.points()) stored.points.push_back(FromProto(point));
  for (const v1::StoredCheckpoint& checkpoint : response.checkpoints()) {
    stored.checkpoints.push_back({.name = checkpoint.name(),
                                  .point = FromProto(checkpoint.point()),
                                  .created_unix_s = checkpoint.created_unix_s()});
  }
  return stored;
}

}  // namespace luwu
