// The daemon's configuration: what it accepts, what it refuses and where it says the error is.
#include "server/config.h"

#include <string>

#include <gtest/gtest.h>

namespace luwu {
namespace {

// 13 lines; the table of errors below counts on them.
constexpr char kGood[] =
    "[node]\n"                       // 1
    "name = \"b\"\n"                 // 2
    "[memory]\n"                     // 3
    "budget = \"512MiB\"\n"          // 4
    "[[nodes]]\n"                    // 5
    "name = \"a\"\n"                 // 6
    "control = \"10.0.0.1:7070\"\n"  // 7
    "data = \"10.0.0.1:7071\"\n"     // 8
    "[[nodes]]\n"                    // 9
    "name = \"b\"\n"                 // 10
    "weight = 3\n"                   // 11
    "control = \"10.0.0.2:7070\"\n"  // 12
    "data = \"10.0.0.2:7071\"\n";    // 13

std::string With(const std::string& what, const std::string& by) {
  std::string text = kGood;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Config, ControlAndDataAreNotOneAddress) {
  const auto config = ParseConfig(With("10.0.0.1:7071", "10.0.0.1:7070"), "c.toml");
  ASSERT_FALSE(config.ok());
  EXPECT_NE(MessageOf(config.status()).find("are one address"), std::string::npos)
      << ToString(config.status());
}

TEST(Config, TakesEveryKey) {
  const std::string text =
      std::string(kGood) +
      "shm = \"/run/b.sock\"\n[optimizer]\nthreads = 3\npin = true\nnuma = \"off\"\n[session]\n"
      "heartbeat_ms = 100\nlease_ms = 400\nshm_allowed_uids = [1000, 0]\n[log]\n"
      "level = \"debug\"\n"
      "journald = true\n";
  const StatusOr<DaemonConfig> config = ParseConfig(text, "c.toml");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  const DaemonConfig expected = {
      .nodes = {{.name = "a",
                 .weight = 1,
                 .control_address = "10.0.0.1:7070",
                 .data_address = "10.0.0.1:7071",
                 .shm_path = ""},
                {.name = "b",
                 .weight = 3,
                 .control_address = "10.0.0.2:7070",
                 .data_address = "10.0.0.2:7071",
                 .shm_path = "/run/b.sock"}},
      .self = 1,
      .memory_budget_bytes = 512 * kMiB,
      .optimizer_threads = 3,
      .optimizer_pin = true,
      .optimizer_numa = false,
      .heartbeat_ms = 100,
      .lease_ms = 400,
      .shm_allowed_uids = {1000, 0},
      .log_level = LogLevel::kDebug,
      .journald = true,
  };
  EXPECT_EQ(*config, expected);
}

TEST(Config, OptionalKeysHaveTheirDefaults) {
  const StatusOr<DaemonConfig> config = ParseConfig(kGood, "c.toml");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->optimizer_threads, 0u);
  EXPECT_FALSE(config->optimizer_pin);
  EXPECT_TRUE(config->optimizer_numa);
  EXPECT_EQ(config->heartbeat_ms, 5000u);
  EXPECT_EQ(config->lease_ms, 15000u);
  EXPECT_TRUE(config->shm_allowed_uids.empty());
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_FALSE(config->journald);
}

struct BadConfig {
  const char* what;
  const char* by;
  const char* where;  // how a line of the error begins
  const char* says;   // what else it contains
};

TEST(Config, RefusesWithLineAndHint) {
  const BadConfig cases[] = {
      // unknown keys
      {"budget", "bugdet", "c.toml:4:", "budget"},
      {"weight = 3", "wieght = 3", "c.toml:11:", "weight"},
      {"[memory]", "[memroy]", "c.toml:3:", "memroy"},
      {"[memory]", "speed = 1\n[memory]", "c.toml:3:", "speed"},
      // wrong types
      {"budget = \"512MiB\"", "budget = true", "c.toml:4:", "budget"},
      {"budget = \"512MiB\"", "budget = 1.5", "c.toml:4:", "budget"},
      {"weight = 3", "weight = \"3\"", "c.toml:11:", "weight"},
      {"name = \"b\"", "name = 7", "c.toml:2:", "name"},
      {"[node]\nname = \"b\"", "node = \"b\"", "c.toml:1:", "node"},
      // out of range
      {"512MiB", "1KiB", "c.toml:4:", "16"},
      {"512MiB", "999999TiB", "c.toml:4:", "budget"},
      {"weight = 3", "weight = 1001", "c.toml:11:", "1000"},
      {"weight = 3", "weight = -1", "c.toml:11:", "weight"},
      {"[memory]", "[session]\nlease_ms = 1\n[memory]", "c.toml:4:", "lease_ms"},
      {"[memory]", "[optimizer]\nthreads = 99999\n[memory]", "c.toml:4:", "1024"},
      {"[memory]", "[optimizer]\nnuma = \"on\"\n[memory]", "c.toml:4:", "auto"},
      {"[memory]", "[log]\nlevel = \"loud\"\n[memory]", "c.toml:4:", "warning"},
      {"[memory]", "[session]\nshm_allowed_uids = [-1]\n[memory]", "c.toml:4:", "-1"},
      {"[memory]", "[session]\nshm_allowed_uids = [4294967295]\n[memory]",
       "c.toml:4:", "4294967294"},
      {"[memory]", "[session]\nshm_allowed_uids = [\"me\"]\n[memory]", "c.toml:4:", "integers"},
      {"[memory]", "[session]\nshm_allowed_uids = 1000\n[memory]", "c.toml:4:", "brackets"},
      // missing
      {"budget = \"512MiB\"\n", "", "c.toml", "budget"},
      {"name = \"b\"\n", "", "c.toml", "name"},
      {"control = \"10.0.0.2:7070\"\n", "", "c.toml", "control"},
      // wrong together
      {"[memory]", "[session]\nheartbeat_ms = 900\nlease_ms = 1000\n[memory]",
       "c.toml:5:", "two heartbeats"},
      {"name = \"b\"", "name = \"c\"", "c.toml:2:", "a, b"},
      {"name = \"a\"", "name = \"b\"", "c.toml", "twice"},
      {"10.0.0.1:7070", "10.0.0.2:7070", "c.toml", "10.0.0.2:7070"},
      // addresses
      {"10.0.0.2:7071", "10.0.0.2", "c.toml:13:", "host:port"},
      {"10.0.0.2:7071", "10.0.0.2:70710", "c.toml:13:", "65535"},
      {"10.0.0.2:7071", "10.0.0.2:", "c.toml:13:", "65535"},
      {"10.0.0.2:7071", ":7071", "c.toml:13:", "host:port"},
      {"10.0.0.2:7071", "fe80::1:7071", "c.toml:13:", "[address]"},
      {"10.0.0.2:7071", "10.0.0.2:0", "c.toml:13:", "port 0"},
      {"10.0.0.2:7070", "0.0.0.0:7070", "c.toml:12:", "dial"},
      {"weight = 3", "shm = \"relative.sock\"", "c.toml:11:", "absolute"},
      // not TOML
      {"[memory]", "[memory", "c.toml:3", ""},
      {"weight = 3", "weight = 3\nweight = 4", "c.toml:12", ""},
  };
  for (const BadConfig& c : cases) {
    const StatusOr<DaemonConfig> config = ParseConfig(With(c.what, c.by), "c.toml");
    ASSERT_FALSE(config.ok()) << c.what << " -> " << c.by;
    EXPECT_EQ(CodeOf(config.status()), ErrorCode::kInvalidArgument);
    const std::string message = MessageOf(config.status());
    EXPECT_NE(("\n" + message).find("\n" + std::string(c.where)), std::string::npos)
        << c.by << ": " << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << c.by << ": " << message;
  }
}

TEST(Config, ReportsAllErrorsAtOnce) {
  std::string text = With("budget", "bugdet");
  text.replace(text.find("weight = 3"), 10, "weight = 1001");
  const std::string message = MessageOf(ParseConfig(text, "c.toml").status());
  EXPECT_NE(message.find("c.toml:4:"), std::string::npos) << message;
  EXPECT_NE(message.find("c.toml:11:"), std::string::npos) << message;
}

TEST(Config, TakesADataDirectory) {
  const std::string text = std::string(kGood) +
                           "[storage]\npath = \"/var/lib/luwu\"\nengine = \"rocksdb_values\"\n"
                           "budget = \"1TiB\"\nscrub_rate = \"10MiB\"\nwarn_percent = 50\n"
                           "stop_checkpoints_percent = 60\nstop_percent = 70\n";
  const StatusOr<DaemonConfig> config = ParseConfig(text, "c.toml");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  const StorageConfig expected = {.path = "/var/lib/luwu",
                                  .engine = persist::Engine::kRocksdbValues,
                                  .budget_bytes = uint64_t{1} << 40,
                                  .warn_percent = 50,
                                  .stop_checkpoints_percent = 60,
                                  .stop_percent = 70,
                                  .scrub_bytes_per_s = 10 * kMiB};
  EXPECT_EQ(config->storage, expected);
  const StatusOr<DaemonConfig> again = ParseConfig(DumpConfig(*config), "dump");
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, *config);
}

TEST(Config, RefusesADataDirectoryThatCannotBe) {
  const auto error_of = [](const std::string& lines) {
    return MessageOf(ParseConfig(std::string(kGood) + "[storage]\n" + lines, "c.toml").status());
  };
  EXPECT_NE(error_of("path = \"data\"\n").find("not an absolute path"), std::string::npos);
  EXPECT_NE(error_of("engine = \"files\"\n").find("rocksdb_values"), std::string::npos);
  EXPECT_NE(error_of("warn_percent = 96\n").find("must not fall"), std::string::npos);
}

TEST(Config, TakesALoopbackAddressForMetricsAndNoOther) {
  const auto with = [](const std::string& address) {
    return ParseConfig(std::string(kGood) + "[metrics]\nlisten = \"" + address + "\"\n", "c.toml");
  };
  EXPECT_EQ(ParseConfig(kGood, "c.toml")->metrics_listen, "");
  for (const char* good : {"127.0.0.1:9464", "127.8.9.10:1", "[::1]:9464", "127.0.0.1:0"}) {
    const StatusOr<DaemonConfig> config = with(good);
    ASSERT_TRUE(config.ok()) << ToString(config.status());
    EXPECT_EQ(config->metrics_listen, good);
    EXPECT_EQ(*ParseConfig(DumpConfig(*config), "dump"), *config);
  }
  for (const char* bad : {"0.0.0.0:9464", "10.0.0.1:9464", "[::]:9464", "127.0.0.1.example.org:1",
                          "localhost:9464", "128.0.0.1:9464"}) {
    const std::string message = MessageOf(with(bad).status());
    EXPECT_NE(message.find("is not a loopback address"), std::string::npos) << bad << message;
    EXPECT_NE(message.find("metrics.listen"), std::string::npos) << message;
  }
  EXPECT_NE(MessageOf(with("127.0.0.1").status()).find("host:port"), std::string::npos);
}

TEST(Config, TakesRdmaSettings) {
  const std::string text = std::string(kGood) +
                           "[rdma]\nuse = \"on\"\ndevice = \"mlx5_1\"\nport = 2\ngid_index = 3\n"
                           "mtu = 1024\nmode = \"busy\"\n";
  const StatusOr<DaemonConfig> config = ParseConfig(text, "c.toml");
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  const transport::VerbsOptions expected = {.use = transport::VerbsUse::kOn,
                                            .device = "mlx5_1",
                                            .port = 2,
                                            .gid_index = 3,
                                            .mtu = 1024,
                                            .busy_poll = true};
  EXPECT_EQ(config->rdma, expected);
  const StatusOr<DaemonConfig> again = ParseConfig(DumpConfig(*config), "dump");
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(*again, *config);
  EXPECT_EQ(ParseConfig(kGood, "c.toml")->rdma, transport::VerbsOptions());
  const auto wrong = ParseConfig(std::string(kGood) + "[rdma]\nmtu = 1500\n", "c.toml");
  EXPECT_NE(MessageOf(wrong.status()).find("256, 512, 1024"), std::string::npos);
}

TEST(Config, NeedsANodeList) {
  const std::string text = "[node]\nname = \"b\"\n[memory]\nbudget = \"512MiB\"\n";
  const StatusOr<DaemonConfig> config = ParseConfig(text, "c.toml");
  ASSERT_FALSE(config.ok());
  EXPECT_NE(MessageOf(config.status()).find("[[nodes]]"), std::string::npos);
}

TEST(Config, ASingleNodeMayLeaveThePortsToTheSystem) {
  const StatusOr<DaemonConfig> config = ParseConfig(
      "[node]\nname=\"b\"\n[memory]\nbudget=\"512MiB\"\n[[nodes]]\nname=\"b\"\n"
      "control=\"127.0.0.1:0\"\ndata=\"127.0.0.1:0\"\n",
      "c.toml");
  EXPECT_TRUE(config.ok()) << ToString(config.status());
}

TEST(Config, AMissingFileIsNamed) {
  const StatusOr<DaemonConfig> config = LoadConfig("/nowhere/luwud.toml");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(CodeOf(config.status()), ErrorCode::kNotFound);
  EXPECT_NE(MessageOf(config.status()).find("/nowhere/luwud.toml"), std::string::npos);
}

TEST(Config, TheSampleFileIsValid) {
  const StatusOr<DaemonConfig> config = LoadConfig(LUWU_SAMPLE_CONFIG);
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->nodes.size(), 2u);
}

TEST(Config, WhatIsDumpedIsReadBackEqual) {
  DaemonConfig config = *ParseConfig(kGood, "c.toml");
  config.nodes[0].shm_path = "/tmp/with \"quotes\" and \\ back\tslash.sock";
  config.nodes[1].data_address.clear();
  config.nodes[1].shm_path = "/tmp/b.sock";
  config.optimizer_threads = 7;
  config.optimizer_pin = true;
  config.optimizer_numa = false;
  config.heartbeat_ms = 123;
  config.lease_ms = 456;
  config.shm_allowed_uids = {1, 22, 333};
  config.log_level = LogLevel::kOff;
  config.journald = true;
  config.memory_budget_bytes = 123456789;
  const StatusOr<DaemonConfig> again = ParseConfig(DumpConfig(config), "dump");
  ASSERT_TRUE(again.ok()) << ToString(again.status()) << "\n" << DumpConfig(config);
  EXPECT_EQ(*again, config);
}

TEST(QuickStart, TakesTheNextPortForData) {
  const StatusOr<DaemonConfig> config =
      QuickStartConfig({.listen = "127.0.0.1:7070", .memory_bytes = kGiB});
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->node().name, "local");
  EXPECT_EQ(config->node().control_address, "127.0.0.1:7070");
  EXPECT_EQ(config->node().data_address, "127.0.0.1:7071");
  EXPECT_NE(config->node().shm_path, "");
  EXPECT_EQ(config->memory_budget_bytes, kGiB);
}

TEST(QuickStart, MakesTheDataDirectoryAbsolute) {
  const auto config = QuickStartConfig(
      {.listen = "127.0.0.1:7070", .memory_bytes = uint64_t{1} << 30, .data_dir = "state/../data"});
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_TRUE(config->storage.path.starts_with("/"));
  EXPECT_TRUE(config->storage.path.ends_with("/data"));
  EXPECT_EQ(config->storage.path.find(".."), std::string::npos);
}

TEST(QuickStart, RefusesByFlag) {
  struct Case {
    QuickStart options;
    const char* says;
  };
  const Case cases[] = {
      {{.listen = "7070", .memory_bytes = kGiB}, "--listen"},
      {{.listen = "0.0.0.0:7070", .memory_bytes = kGiB}, "--listen"},
      {{.listen = "127.0.0.1:65535", .memory_bytes = kGiB}, "--data"},
      {{.listen = "127.0.0.1:7070", .data = "x", .memory_bytes = kGiB}, "--data"},
      {{.listen = "127.0.0.1:7070", .shm = "x", .memory_bytes = kGiB}, "--shm"},
      {{.listen = "127.0.0.1:7070", .memory_bytes = 1}, "--memory"},
  };
  for (const Case& c : cases) {
    const StatusOr<DaemonConfig> config = QuickStartConfig(c.options);
    ASSERT_FALSE(config.ok()) << c.says;
    EXPECT_NE(MessageOf(config.status()).find(c.says), std::string::npos)
        << ToString(config.status());
  }
}

}  // namespace
}  // namespace luwu
