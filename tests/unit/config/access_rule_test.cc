#include "common/config/access_rule.h"

#include <gtest/gtest.h>

namespace luwu {
namespace {

AccessRule Rule(const std::string& identity, Role role, std::vector<std::string> jobs) {
  return {.identity = identity, .role = role, .jobs = std::move(jobs)};
}

TEST(AccessRuleTest, IdentitiesAreUrisOrDnsNames) {
  for (const char* good : {"spiffe://cluster/team-a", "trainer.example.org", "node0"}) {
    EXPECT_TRUE(CheckIdentity(good).ok()) << good;
  }
  for (const char* bad : {"", "two words", "*.example.org", "a\"b", "a\nb"}) {
    EXPECT_EQ(CodeOf(CheckIdentity(bad)), ErrorCode::kInvalidArgument) << bad;
  }
}

// Written as the kernel's numbers are, for they are compared as text.
TEST(AccessRuleTest, UsersAndGroupsAreNumbers) {
  for (const char* good : {"uid:0", "uid:1000", "gid:4294967294"}) {
    EXPECT_TRUE(CheckIdentity(good).ok()) << good;
    EXPECT_TRUE(IsLocalIdentity(good)) << good;
  }
  for (const char* bad : {"uid:", "uid:01", "uid:-1", "uid:+1", "uid: 1", "uid:1x", "gid:alice",
                          "uid:4294967295", "uid:4294967296", "gid:99999999999999999999"}) {
    EXPECT_EQ(CodeOf(CheckIdentity(bad)), ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(IsLocalIdentity("guid:1"));
}

TEST(AccessRuleTest, NoCertificateIsAUser) {
  const std::vector<AccessRule> rules = {Rule("uid:0", Role::kOperator, {"*"}),
                                         Rule("host-a", Role::kObserver, {"*"})};
  EXPECT_EQ(FindRule(rules, {.uris = {"uid:0"}, .dns = {"uid:0"}}), nullptr);
  EXPECT_EQ(FindRule(rules, {.local = {"uid:0", "gid:0"}}), &rules[0]);
  EXPECT_EQ(FindRule(rules, {.local = {"uid:1", "host-a"}}), nullptr);
}

// A DNS name that looks like a URI's text, and the other way round, are different names.
TEST(AccessRuleTest, KindsOfNamesAreNotMixedUp) {
  const std::vector<AccessRule> rules = {Rule("spiffe://a/b", Role::kOperator, {"*"}),
                                         Rule("host-a", Role::kObserver, {"*"})};
  EXPECT_EQ(FindRule(rules, {.uris = {"spiffe://a/b"}, .dns = {}}), &rules[0]);
  EXPECT_EQ(FindRule(rules, {.uris = {}, .dns = {"spiffe://a/b"}}), nullptr);
  EXPECT_EQ(FindRule(rules, {.uris = {"host-a"}, .dns = {}}), nullptr);
  EXPECT_EQ(FindRule(rules, {.uris = {}, .dns = {"x", "host-a"}}), &rules[1]);
}

TEST(AccessRuleTest, NamesAreComparedWhole) {
  const std::vector<AccessRule> rules = {Rule("spiffe://a/b", Role::kOperator, {"*"})};
  for (const char* other : {"spiffe://a/bc", "spiffe://a/", "spiffe://A/b", ""}) {
    EXPECT_EQ(FindRule(rules, {.uris = {other}, .dns = {}}), nullptr) << other;
  }
  EXPECT_EQ(FindRule(rules, {}), nullptr);
}

TEST(AccessRuleTest, TheFirstRuleCounts) {
  const std::vector<AccessRule> rules = {Rule("b", Role::kObserver, {"*"}),
                                         Rule("a", Role::kOperator, {"*"})};
  EXPECT_EQ(FindRule(rules, {.uris = {}, .dns = {"a", "b"}}), &rules[0]);
}

TEST(AccessRuleTest, JobsAreNamesOrBeginnings) {
  const AccessRule rule = Rule("a", Role::kTrainer, {"one", "team-*"});
  for (const char* job : {"one", "team-", "team-x"}) EXPECT_TRUE(MayTouch(rule, job)) << job;
  for (const char* job : {"", "ones", "on", "team", "xteam-", "*"}) {
    EXPECT_FALSE(MayTouch(rule, job)) << job;
  }
  EXPECT_FALSE(MayTouch(Rule("a", Role::kOperator, {}), "one"));
  EXPECT_TRUE(MayTouch(Rule("a", Role::kDaemon, {}), "one"));
  EXPECT_TRUE(MayTouch(Rule("a", Role::kObserver, {"*"}), ""));
}

TEST(AccessRuleTest, PatternsHaveOneStarAtTheEnd) {
  for (const char* good : {"*", "a", "a*"}) EXPECT_TRUE(CheckJobPattern(good).ok()) << good;
  for (const char* bad : {"", "*a", "a*b", "a**"}) EXPECT_FALSE(CheckJobPattern(bad).ok()) << bad;
}

}  // namespace
}  // namespace luwu
