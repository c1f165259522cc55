// Small statistics of measured values.
#pragma once

#include <algorithm>
#include <vector>

namespace luwu::bench {

// The value that a share `q` of the samples does not exceed; 0 without samples.
inline double Quantile(std::vector<double> samples, double q) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto index = static_cast<size_t>(q * static_cast<double>(samples.size()));
  return samples[std::min(index, samples.size() - 1)];
}

inline double Median(const std::vector<double>& samples) { return Quantile(samples, 0.5); }

}  // namespace luwu::bench
