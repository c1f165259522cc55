// Accumulates fields into an XXH3 fingerprint over a canonical encoding: integers as eight
// little-endian bytes, texts with their length before them, so that no two lists of fields encode
// alike. Local to the FingerprintOf functions; single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

struct XXH3_state_s;

namespace luwu {

class Fingerprint {
 public:
  Fingerprint();
  void Add(uint64_t value);
  void Add(std::string_view text);
  uint64_t Value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace luwu
