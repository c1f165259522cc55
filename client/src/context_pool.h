// Reusable working memory of synchronous calls: a call takes a context, uses its buffers, and puts
// it back, so that after the first calls nothing is allocated. As many contexts exist as there
// were calls at the same time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace luwu::client {

template <typename T>
class ContextPool {
 public:
  // A context for the scope of a call.
  class Loan {
   public:
    Loan(ContextPool* pool, std::unique_ptr<T> context)
        : pool_(pool), context_(std::move(context)) {}
    Loan(Loan&& other) noexcept : pool_(other.pool_), context_(std::move(other.context_)) {}
    ~Loan() {
      if (context_ != nullptr) pool_->Return(std::move(context_));
    }
    T& operator*() const { return *context_; }
    T* operator->() const { return context_.get(); }

   private:
    ContextPool* pool_;
    std::unique_ptr<T> context_;
  };

  // `make` returns a new context when none is idle.
  template <typename Make>
  Loan Take(const Make& make) LUWU_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> context = std::move(idle_.back());
        idle_.pop_back();
        return Loan(this, std::move(context));
      }
    }
    return Loan(this, make());
  }

 private:
  void Return(std::unique_ptr<T> context) LUWU_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(context));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu::client
