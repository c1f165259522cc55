#include "server/service/denial_log.h"

#include <algorithm>
#include <chrono>

#include "common/base/log.h"

namespace luwu {
namespace {

constexpr size_t kTextMax = 300;

// What callers sent: no character may end the field or the line.
std::string Quotable(const std::string& text) {
  std::string out = text.substr(0, kTextMax);
  const auto unfit = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f || c == '"' || c == '\\';
  };
  std::replace_if(out.begin(), out.end(), unfit, '?');
  return out;
}

}  // namespace

bool DenialLog::Enter(TimePoint now, uint64_t* left_out) {
  MutexLock lock(mutex_);
  return budget_.Take(now, left_out);
}

void DenialLog::Add(const Denial& denial) {
  uint64_t left_out = 0;
  if (!Enter(std::chrono::steady_clock::now(), &left_out)) return;
  LogWarning("access_denied", "identity=\"{}\" rpc=\"{}\" job=\"{}\" why=\"{}\"{}",
             Quotable(denial.identity), Quotable(denial.method), Quotable(denial.job),
             Quotable(denial.why),
             left_out == 0 ? "" : fmt::format(" lines_left_out={}", left_out));
}

}  // namespace luwu
