// The tables [tls] and [[access]].
#include "server/config_security.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace luwu {
namespace {

constexpr char kNode[] =
    "[node]\nname = \"a\"\n[memory]\nbudget = \"512MiB\"\n"
    "[[nodes]]\nname = \"a\"\ncontrol = \"10.0.0.1:7070\"\ndata = \"10.0.0.1:7071\"\n";
constexpr char kSecondNode[] =
    "[[nodes]]\nname = \"b\"\ncontrol = \"10.0.0.2:7070\"\ndata = \"10.0.0.2:7071\"\n";
constexpr char kTls[] = "[tls]\ncertificate = \"/c.pem\"\nkey = \"/k.pem\"\nca = \"/ca.pem\"\n";
constexpr char kTrainer[] =
    "[[access]]\nidentity = \"spiffe://x/a\"\nrole = \"trainer\"\njobs = [\"one\", \"team-*\"]\n";
constexpr char kDaemon[] = "[[access]]\nidentity = \"node.example\"\nrole = \"daemon\"\n";

StatusOr<DaemonConfig> Parse(const std::string& text) { return ParseConfig(text, "c.toml"); }

void ExpectError(const std::string& text, const std::string& words) {
  const auto config = Parse(text);
  ASSERT_FALSE(config.ok()) << words;
  EXPECT_NE(MessageOf(config.status()).find(words), std::string::npos)
      << MessageOf(config.status());
}

TEST(ConfigSecurity, IsPlainTextWhenNothingIsSaid) {
  const auto config = Parse(kNode);
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->tls, TlsConfig());
  EXPECT_TRUE(config->access.empty());
}

TEST(ConfigSecurity, IsReadAndDumped) {
  const auto config =
      Parse(std::string(kNode) + kSecondNode + kTls + "refresh = \"5s\"\n" + kTrainer + kDaemon);
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  const TlsConfig tls = {{"/c.pem", "/k.pem", "/ca.pem"}, 5};
  EXPECT_EQ(config->tls, tls);
  const std::vector<AccessRule> access = {
      {.identity = "spiffe://x/a", .role = Role::kTrainer, .jobs = {"one", "team-*"}},
      {.identity = "node.example", .role = Role::kDaemon, .jobs = {}}};
  EXPECT_EQ(config->access, access);
  const auto again = Parse(DumpConfig(*config));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, *config);
}

TEST(ConfigSecurity, LimitsAreReadAndDumped) {
  const auto config = Parse(std::string(kNode) + kTls + kTrainer +
                            "sessions_max = 4\nslots_max = 64\nmemory_max = \"2GiB\"\n");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  const Quota quota = {.sessions = 4, .slots = 64, .memory_bytes = 2'147'483'648};
  EXPECT_EQ(config->access[0].quota, quota);
  const auto again = Parse(DumpConfig(*config));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, *config);
}

TEST(ConfigSecurity, OnlyWhoMayHaveSomethingHasLimits) {
  const std::string tls = std::string(kNode) + kTls;
  ExpectError(tls + kDaemon + "slots_max = 3\n", "this is role \"daemon\"");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"observer\"\njobs = [\"*\"]\n" +
                  "memory_max = 3\n",
              "this is role \"observer\"");
  ExpectError(tls + kTrainer + "sessions_max = 0\n", "sessions_max");
}

TEST(ConfigSecurity, UsersOfTheHostNeedTheLocalSocketAndItThem) {
  const std::string tls = std::string(kNode) + kTls;
  const std::string user =
      "[[access]]\nidentity = \"uid:1000\"\nrole = \"trainer\"\njobs = [\"*\"]\n";
  const std::string local = "[local]\nsocket = \"/run/l.sock\"\n";
  const auto config = Parse(tls + local + user);
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->local_socket, "/run/l.sock");
  const auto again = Parse(DumpConfig(*config));
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, *config);
  ExpectError(tls + user, "users of this host need [local] socket");
  ExpectError(tls + local + kTrainer, "is a user or group");
  ExpectError(kNode + local, "without [tls] everybody may do everything");
  ExpectError(tls + "[local]\nsocket = \"l.sock\"\n" + user, "'l.sock' is not an absolute path");
  ExpectError(tls + local + user + "[[access]]\nidentity = \"gid:7\"\nrole = \"daemon\"\n",
              "daemons call each other with certificates");
  ExpectError(
      tls + local + "[[access]]\nidentity = \"uid:me\"\nrole = \"trainer\"\njobs = [\"*\"]\n",
      "a decimal number");
}

// Nobody reads what is commented out, until somebody takes the '#' away.
TEST(ConfigSecurity, TheSampleIsRightWithItsTlsSwitchedOn) {
  std::ifstream file(LUWU_SAMPLE_CONFIG);
  std::string text;
  bool within = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("# [")) within = true;
    if (line.empty()) within = false;
    const bool key = line.starts_with("# [") || (within && line.find(" = ") != std::string::npos);
    text += (key && line.starts_with("# ") ? line.substr(2) : line) + "\n";
  }
  const auto config = Parse(
      text + kDaemon + "[[access]]\nidentity = \"uid:0\"\nrole = \"trainer\"\njobs = [\"*\"]\n");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_FALSE(config->tls.files.empty());
  EXPECT_FALSE(config->local_socket.empty());
  ASSERT_EQ(config->access.size(), 3u);
  EXPECT_NE(config->access[0].quota.memory_bytes, 0u);
}

TEST(ConfigSecurity, TlsAndAccessComeTogether) {
  const std::string node = kNode;
  ExpectError(node + kTls, "without [[access]] nobody may do anything");
  ExpectError(node + kTrainer, "without [tls] nobody shows who they are");
  ExpectError(node + kSecondNode + kTls + kTrainer, "no entry has role \"daemon\"");
  EXPECT_TRUE(Parse(node + kTls + kTrainer).ok());  // no other daemon
}

TEST(ConfigSecurity, EveryErrorNamesItsKey) {
  const std::string node = kNode;
  ExpectError(node + "[tls]\nca = \"/ca.pem\"\n" + kTrainer, "'tls.certificate': is missing");
  ExpectError(node + "[tls]\nca = \"/ca.pem\"\n" + kTrainer, "'tls.key': is missing");
  ExpectError(node + "[tls]\ncertificate = \"c.pem\"\nkey = \"/k\"\nca = \"/a\"\n" + kTrainer,
              "'c.pem' is not an absolute path");
  const std::string tls = node + kTls;
  ExpectError(tls + "refresh = \"10ms\"\n" + kTrainer, "tls.refresh");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"trainer\"\n", "jobs': is missing");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"daemon\"\njobs = [\"*\"]\n",
              "a daemon takes part in every job");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"root\"\njobs = [\"*\"]\n", "\"root\"");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"trainer\"\njobs = [\"a*b\"]\n",
              "'a*b' is neither");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"trainer\"\njobs = \"*\"\n",
              "texts in brackets");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"trainer\"\njobs = [1]\n",
              "texts only in these brackets");
  ExpectError(tls + "[[access]]\nidentity = \"a\"\nrole = \"trainer\"\njobs = [\"\"]\n",
              "has an empty text");
  ExpectError(tls + "[[access]]\nrole = \"trainer\"\njobs = [\"*\"]\n", "identity': is missing");
  ExpectError(tls + kTrainer + kTrainer, "has two entries");
}

}  // namespace
}  // namespace luwu
