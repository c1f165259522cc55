// What the client's end-to-end tests share: a small job, workers that use the C ABI, and a training
// run whose final masters can be compared bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/include/luwu/error.hpp"
#include "client/include/luwu/luwu.h"
#include "client/include/luwu/luwu.hpp"
#include "client/include/luwu/schema.hpp"
#include "tests/fakes/daemon_process.h"

namespace luwu::testing {

// Shared memory and tcp; in the guest of scripts/rdma-vm, which sets LUWU_TEST_VERBS, RDMA.
inline std::vector<luwu_transport> TestedTransports() {
  const char* verbs = std::getenv("LUWU_TEST_VERBS");
  if (verbs != nullptr && std::string(verbs) == "device") return {LUWU_TRANSPORT_VERBS};
  return {LUWU_TRANSPORT_SHM, LUWU_TRANSPORT_TCP};
}
inline std::string TransportName(luwu_transport transport) {
  return transport == LUWU_TRANSPORT_SHM   ? "shm"
         : transport == LUWU_TRANSPORT_TCP ? "tcp"
                                           : "verbs";
}

// Sizes around the shard size (64): below, at, above, several; one frozen layer; one with a gap.
inline cxx::JobSpec SmallJob(uint32_t world_size) {
  cxx::JobSpec job;
  job.name = "small";
  job.world_size = world_size;
  job.shard_elements = 64;
  job.slots_per_worker = 4;
  job.served_dtype = LUWU_FLOAT32;
  job.gradient_dtype = LUWU_FLOAT32;
  job.layers = {
      {"below", {{"below.w", {63}}}},
      {"at", {{"at.w", {8, 8}}}},
      {"above", {{"above.w", {65}}}},
      {"many", {{"many.a", {10, 50}}, {"many.b", {77}}, {"many.frozen", {100}, 0, false}}},
      {"gap", {{"gap.a", {30}}, {"gap.b", {40}, 0, true, 100}}, 300},
      {"cold", {{"cold.w", {200}, 0, false}}},
  };
  return job;
}

inline uint64_t ElementsOf(const cxx::Layer& layer) {
  if (layer.elements != 0) return layer.elements;
  uint64_t elements = 0;
  for (const cxx::Tensor& tensor : layer.tensors) elements += tensor.elements();
  return elements;
}
inline bool IsFrozen(const cxx::Layer& layer) {
  for (const cxx::Tensor& tensor : layer.tensors) {
    if (tensor.trainable) return false;
  }
  return true;
}

// A value that depends on everything, in [-1, 1], exact in float.
inline float ValueAt(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + index * 0xbf58476d1ce4e5b9ull + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 29;
  return static_cast<float>(static_cast<int64_t>(x % 20001) - 10000) / 16384.0f;
}

inline std::vector<float> Values(uint64_t seed, uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = ValueAt(seed, i);
  return values;
}

inline void LoadAll(cxx::Session& session, const cxx::JobSpec& job) {
  for (uint32_t layer = 0; layer < job.layers.size(); ++layer) {
    const std::vector<float> values = Values(1000 + layer, ElementsOf(job.layers[layer]));
    session.load({layer, 0}, values.data(), values.size());
  }
  session.finish_load();
}

// The gradient of (step, micro-batch, layer, rank) depends on the weights, so that a wrong fetch
// shows in the end.
inline std::vector<float> GradientOf(const std::vector<float>& weights, uint64_t seed) {
  std::vector<float> gradient = Values(seed, weights.size());
  for (size_t i = 0; i < weights.size(); ++i) gradient[i] += 0.25f * weights[i];
  return gradient;
}

struct RunOptions {
  uint64_t first_step = 0;
  uint64_t steps = 4;
  uint32_t micro_steps = 2;
  bool async_calls = false;
};

// One worker's part of a run.
inline void TrainWorker(cxx::Session& session, const cxx::JobSpec& job, uint32_t rank,
                        const RunOptions& run) {
  for (uint64_t step = run.first_step; step < run.first_step + run.steps; ++step) {
    session.begin_step(step, {cxx::adamw(1e-2)});
    for (uint32_t micro = 0; micro < run.micro_steps; ++micro) {
      // Ranks visit the layers in different orders.
      for (uint32_t i = 0; i < job.layers.size(); ++i) {
        const uint32_t layer = (i + rank) % static_cast<uint32_t>(job.layers.size());
        std::vector<float> weights(ElementsOf(job.layers[layer]));
        const cxx::Segments to = {cxx::segment(weights.data(), weights.size())};
        if (run.async_calls) {
          session.fetch_async(layer, step, to).wait();
        } else {
          session.fetch(layer, step, to);
        }
        if (IsFrozen(job.layers[layer])) continue;
        std::vector<float> gradient =
            GradientOf(weights, step * 1000 + micro * 100 + layer * 10 + rank);
        const cxx::Segments from = {cxx::segment(gradient.data(), gradient.size())};
        const uint32_t flags = micro + 1 == run.micro_steps ? LUWU_PUSH_CLOSE : 0;
        if (run.async_calls) {
          session.push_async(layer, from, flags).wait();
        } else {
          session.push(layer, from, flags);
        }
      }
    }
    const luwu_commit_result result = session.commit(step);
    ASSERT_EQ(result.outcome, LUWU_APPLIED) << result.culprit;
  }
}

// Every master and moment of the job, as bits.
inline std::vector<uint32_t> Fingerprint(cxx::Session& session, const cxx::JobSpec& job) {
  std::vector<uint32_t> bits;
  for (uint32_t layer = 0; layer < job.layers.size(); ++layer) {
    for (const luwu_quantity quantity : {LUWU_MASTER, LUWU_MOMENT1, LUWU_MOMENT2}) {
      if (IsFrozen(job.layers[layer]) && quantity != LUWU_MASTER) continue;
      std::vector<float> values(ElementsOf(job.layers[layer]));
      session.read({layer, 0}, quantity, values.data(), values.size());
      const size_t at = bits.size();
      bits.resize(at + values.size());
      std::memcpy(&bits[at], values.data(), values.size() * sizeof(float));
    }
  }
  return bits;
}

}  // namespace luwu::testing
