// The power supply of a fake machine: fake_disk.h and fault_file_system.h ask it before every
// operation. When it fails, everything fails from then on, until the test switches it on again and
// tells the fakes what the loss has done to them.
#pragma once

#include <atomic>
#include <cstdint>

namespace luwu::fakes {

class Power {
 public:
  void FailAfter(int64_t operations) { left_ = operations; }
  void On() { left_ = int64_t{1} << 60; }
  // False when it is gone.
  bool Use() { return left_.fetch_sub(1) > 0; }
  bool on() const { return left_ > 0; }

 private:
  std::atomic<int64_t> left_{int64_t{1} << 60};
};

}  // namespace luwu::fakes
