// An exact sum of squares. Every double that is a (rounded) sum of squares of fp32 values is a
// multiple of 2^-298, so such doubles are added here as integers of 640 bits, without any error:
// the total does not depend on the order of additions, nor on how they were spread over threads
// and nodes. It is rounded once, when it is read.
//
// Used by the step pipeline for gradient norms and sent between daemons. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace luwu {

class ExactSum {
 public:
  // Room for 2^44 squares of the largest fp32 value, 2^85 of them before it wraps.
  static constexpr uint32_t kWords = 10;

  // `value`: 0 or positive, finite, a multiple of 2^-298 and below 2^301 (CHECKed).
  void Add(double value);
  void Merge(const ExactSum& other);

  bool IsZero() const;
  // The nearest double, ties to even. Exact when at most 53 bits are needed.
  double ToDouble() const;

  // Bytes that another node can read: the number of low words that are zero, then the others,
  // little-endian, without high zeros. Empty for zero.
  std::string Serialize() const;
  // kInvalidArgument for bytes that Serialize does not write.
  static StatusOr<ExactSum> Parse(std::string_view bytes);

  bool operator==(const ExactSum&) const = default;

 private:
  std::array<uint64_t, kWords> words_ = {};  // little-endian, in units of 2^-298
};

}  // namespace luwu
