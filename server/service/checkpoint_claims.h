// Which checkpoints commands are at work on, so that what one makes another one does not drop
// meanwhile, and so that a job's checkpoints are made one after the other. Commands that have
// nothing to do with each other do not wait for each other.
//
// Owned by CheckpointMaker. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/service/caller.h"

namespace luwu {

class CheckpointClaims {
 public:
  enum class Work : uint8_t { kMake, kDrop, kRestore };

  // Ends with the object, which does not outlive the claims.
  class Claim {
   public:
    Claim(CheckpointClaims* claims, std::string job, std::string name, Work work)
        : claims_(claims), job_(std::move(job)), name_(std::move(name)), work_(work) {}
    Claim(Claim&& other) noexcept
        : claims_(std::exchange(other.claims_, nullptr)),
          job_(std::move(other.job_)),
          name_(std::move(other.name_)),
          work_(other.work_) {}
    Claim& operator=(Claim&&) = delete;
    ~Claim() {
      if (claims_ != nullptr) claims_->Release(job_, name_, work_);
    }

   private:
    CheckpointClaims* claims_;
    std::string job_;
    std::string name_;
    Work work_;
  };

  // Waits while another command has it: a few seconds at most, then kState, naming that command.
  StatusOr<Claim> Take(const std::string& job, const std::string& name, Work work,
                       const Caller& caller) LUWU_EXCLUDES(mutex_);

 private:
  struct Job {
    std::map<std::string, Work> works;  // by checkpoint
    bool making = false;
  };
  // OK, or what stands in the way.
  Status Check(const std::string& job, const std::string& name, Work work) const
      LUWU_REQUIRES(mutex_);
  void Release(const std::string& job, const std::string& name, Work work) LUWU_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar released_;
  std::map<std::string, Job> jobs_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
