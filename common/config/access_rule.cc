#include "common/config/access_rule.h"

#include <algorithm>
#include <charconv>

namespace luwu {
namespace {

constexpr size_t kIdentityBytesMax = 2048;  // of a SPIFFE id

constexpr std::string_view kUid = "uid:";
constexpr std::string_view kGid = "gid:";

// As the kernel's numbers are written: compared as text.
bool IsNumber(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number != UINT32_MAX &&
         std::to_string(number) == text;
}

bool IsUri(std::string_view identity) { return identity.find("://") != std::string_view::npos; }

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsPlain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte > 0x20 && byte < 0x7f && c != '"' && c != '\\';
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kObserver:
      return "observer";
    case Role::kTrainer:
      return "trainer";
    case Role::kOperator:
      return "operator";
    case Role::kDaemon:
      return "daemon";
  }
  return "unknown";
}

Status CheckIdentity(const std::string& identity) {
  if (IsLocalIdentity(identity)) {
    if (IsNumber(std::string_view(identity).substr(kUid.size()))) return OkStatus();
    return Error(ErrorCode::kInvalidArgument,
                 "'{}' is not \"uid:\" or \"gid:\" and a decimal number up to 4294967294",
                 identity);
  }
  if (identity.empty() || identity.size() > kIdentityBytesMax ||
      !std::all_of(identity.begin(), identity.end(), IsPlain)) {
    return Error(ErrorCode::kInvalidArgument,
                 "'{}' is neither a URI such as \"spiffe://cluster/team-a\" nor a DNS name",
                 identity);
  }
  if (IsUri(identity) || identity.find('*') == std::string::npos) return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "'{}': an identity is compared as it is; write out all",
               identity);
}

Status CheckJobPattern(const std::string& pattern) {
  const size_t star = pattern.find('*');
  if (!pattern.empty() && (star == std::string::npos || star + 1 == pattern.size())) {
    return OkStatus();
  }
  return Error(ErrorCode::kInvalidArgument,
               "'{}' is neither the name of a job nor the beginning of names with a '*' behind",
               pattern);
}

bool IsLocalIdentity(std::string_view identity) {
  return identity.starts_with(kUid) || identity.starts_with(kGid);
}

std::string CallerNames::text() const {
  if (!local.empty()) return local.front();
  if (!uris.empty()) return uris.front();
  return dns.empty() ? "none" : dns.front();
}

const AccessRule* FindRule(const std::vector<AccessRule>& rules, const CallerNames& names) {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const AccessRule& rule) {
    if (IsLocalIdentity(rule.identity)) return Contains(names.local, rule.identity);
    return Contains(IsUri(rule.identity) ? names.uris : names.dns, rule.identity);
  });
  return found == rules.end() ? nullptr : &*found;
}

bool MayTouch(const AccessRule& rule, std::string_view job) {
  if (rule.role == Role::kDaemon) return true;
  return std::any_of(rule.jobs.begin(), rule.jobs.end(), [&](std::string_view pattern) {
    if (!pattern.ends_with('*')) return pattern == job;
    pattern.remove_suffix(1);
    return job.starts_with(pattern);
  });
}

}  // namespace luwu
