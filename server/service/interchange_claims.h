// Who is at work on what, over several calls: an import has its job from BeginImport to
// FinishImport, an export its draft from BeginExport to FinishExport. Between the calls nothing
// tells whether the caller is alive, so a claim lasts until a while after the last sign of it; then
// another one may have it.
//
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/sync.h"
#include "common/base/unique_fd.h"

namespace luwu {

class InterchangeClaims {
 public:
  // luwuctl asks for progress every 5 s.
  static constexpr uint64_t kSilentMs = 20'000;

  explicit InterchangeClaims(uint64_t silent_ms = kSilentMs) : silent_ms_(silent_ms) {}

  // `owner`, a random number, has `key` then, or has it still; false when another has it. `lock` is
  // kept as long as the claim.
  bool Take(const std::string& key, uint64_t owner, UniqueFd lock = {}) LUWU_EXCLUDES(mutex_);
  // A call begins which may last long: the claim does not end before the call. False, and nothing
  // to end, when `owner` does not have it.
  bool BeginCall(const std::string& key, uint64_t owner) LUWU_EXCLUDES(mutex_);
  // `keep`: another call of the same owner is to come.
  void EndCall(const std::string& key, uint64_t owner, bool keep) LUWU_EXCLUDES(mutex_);
  void Heard(uint64_t owner) LUWU_EXCLUDES(mutex_);
  // At once, or with the call in progress.
  void GiveUp(const std::string& key, uint64_t owner) LUWU_EXCLUDES(mutex_);
  // Ends the claims of owners who have not been heard of for long.
  void RemoveSilent() LUWU_EXCLUDES(mutex_);

 private:
  struct Claim {
    uint64_t owner = 0;
    UniqueFd lock;
    uint32_t calls = 0;
    bool given_up = false;
    TimePoint end;  // unless a call is in progress
  };
  using Table = std::map<std::string, Claim>;
  Table::iterator Find(const std::string& key, uint64_t owner) LUWU_REQUIRES(mutex_);
  void RemoveSilentLocked() LUWU_REQUIRES(mutex_);

  const uint64_t silent_ms_;
  Mutex mutex_;
  Table claims_ LUWU_GUARDED_BY(mutex_);
};

}  // namespace luwu
