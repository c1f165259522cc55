// The keys of one shard's random bits in one update; kernels/state-inl.h says how they are used.
#pragma once

#include <array>
#include <cstdint>

namespace luwu::optim {

// One for each array beside the master.
struct RoundingKey {
  struct Array {
    uint32_t first = 0;
    uint32_t second = 0;
  };
  std::array<Array, 3> arrays = {};
};

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// `shard_element`: job-wide number of the shard's first element.
constexpr RoundingKey MakeRoundingKey(uint64_t seed, uint64_t applied, uint64_t shard_element) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  uint64_t key = Mix64(seed + kGolden);
  key = Mix64(key ^ (applied + kGolden));
  key = Mix64(key + shard_element * kGolden);
  RoundingKey result;
  for (RoundingKey::Array& array : result.arrays) {
    key = Mix64(key + kGolden);
    array = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  }
  return result;
}

}  // namespace luwu::optim
