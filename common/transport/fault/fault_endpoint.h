// Wraps an endpoint and misbehaves within the transport contract, for tests: requests are delayed,
// executed twice, refused without being executed ("dropped"), or executed and then reported failed
// ("lost completion"); the link can be cut after a number of requests. Deterministic for a seed and
// a posting order.
#pragma once

#include <cstdint>
#include <memory>

#include "common/transport/transport.h"

namespace luwu::transport {

struct FaultPlan {
  uint64_t seed = 1;
  // Probabilities per request, in thousandths.
  uint32_t delay_permille = 0;
  uint32_t delay_ms_max = 5;
  uint32_t duplicate_permille = 0;
  uint32_t drop_permille = 0;              // completes with kUnavailable, never executed
  uint32_t lose_completion_permille = 0;   // executed, completes with kUnavailable
  uint64_t disconnect_after_requests = 0;  // 0: never

  bool any() const {
    return delay_permille || duplicate_permille || drop_permille || lose_completion_permille ||
           disconnect_after_requests;
  }
};

// Parses "seed=7,delay=100,delay_ms=3,duplicate=50,drop=50,lose=50,disconnect_after=1000".
StatusOr<FaultPlan> ParseFaultPlan(std::string_view text);

std::unique_ptr<Endpoint> WrapWithFaults(std::unique_ptr<Endpoint> inner, const FaultPlan& plan);

}  // namespace luwu::transport
