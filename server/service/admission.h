// Whether this daemon answers calls now: not before it is wholly up, and not while it shuts down.
// Every handler asks first. Thread-safe.
#pragma once

#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace luwu {

class Admission {
 public:
  explicit Admission(const std::string& node)
      : refusal_(Error(ErrorCode::kUnavailable, "node {} is starting; try again", node)) {}

  void Open() {
    MutexLock lock(mutex_);
    refusal_ = OkStatus();
  }
  // `why` is what callers hear from now on.
  void Close(Status why) {
    MutexLock lock(mutex_);
    refusal_ = std::move(why);
  }
  Status Check() const {
    MutexLock lock(mutex_);
    return refusal_;
  }

 private:
  mutable Mutex mutex_;
  Status refusal_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
