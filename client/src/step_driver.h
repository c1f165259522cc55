// Opens and ends steps on all nodes at once. Called by the session, any thread; both calls may be
// repeated after an error that says so.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/fabric.h"
#include "client/src/session_rpc.h"

namespace luwu::client {

class StepDriver {
 public:
  StepDriver(Fabric* fabric, const std::vector<std::unique_ptr<NodeRpc>>* rpcs)
      : fabric_(fabric), rpcs_(rpcs) {
    const double initial = fabric->plan().spec().loss_scaling.initial_scale;
    loss_scale_ = initial == 0 ? 1 : initial;
  }

  Status Begin(uint64_t step, const std::vector<HyperParameters>& groups, TimePoint deadline);
  // Waits for asynchronous pushes, checks that every trainable layer is closed, then waits for the
  // decision. Outcome kFailed ends the session's work: later calls get kJobFailed.
  StatusOr<CommitReply> Commit(uint64_t step, TimePoint deadline);
  // Of the open step, else of the next one; 1 without loss scaling.
  double loss_scale();

 private:
  Status CheckBegin(uint64_t step, const std::vector<HyperParameters>& groups);
  // The remembered reply when `step` was committed before; else waits until it can be.
  StatusOr<std::optional<CommitReply>> PrepareCommit(uint64_t step, TimePoint deadline);

  Fabric* const fabric_;
  const std::vector<std::unique_ptr<NodeRpc>>* const rpcs_;
  // Guarded by the monitor.
  std::optional<uint64_t> committed_step_;
  CommitReply committed_;
  double loss_scale_ = 1;
};

}  // namespace luwu::client
