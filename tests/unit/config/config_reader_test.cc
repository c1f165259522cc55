#include "common/config/config_reader.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "common/base/bytes.h"

namespace luwu {
namespace {

ConfigReader Read(const std::string& text) {
  StatusOr<ConfigReader> reader = ConfigReader::Parse(text, "t.toml");
  if (!reader.ok()) {
    ADD_FAILURE() << ToString(reader.status());
    std::abort();
  }
  return *reader;
}

TEST(ConfigReaderTest, ReadsEveryType) {
  ConfigReader root = Read(R"(
name = "node-a"
count = 7
budget = "4GiB"
plain_bytes = 4096
lease = "15s"
plain_lease = 250
journald = true
level = "info"
uids = [1000, 7]

[memory]
pinned = false

[[node]]
name = "a"
[[node]]
name = "b"
weight = 3
)");
  EXPECT_EQ(root.GetString("name"), "node-a");
  EXPECT_EQ(root.GetU64("count", {1, 10}), 7u);
  EXPECT_EQ(root.GetBytes("budget", {}), 4 * kGiB);
  EXPECT_EQ(root.GetBytes("plain_bytes", {}), 4096u);
  EXPECT_EQ(root.GetDurationMs("lease", {}), 15000u);
  EXPECT_EQ(root.GetDurationMs("plain_lease", {}), 250u);
  EXPECT_TRUE(root.GetBool("journald"));
  EXPECT_EQ(root.GetU64List("uids", {7, 1000}), (std::vector<uint64_t>{1000, 7}));
  EXPECT_EQ(root.GetChoice("level", {"debug", "info"}), "info");
  EXPECT_TRUE(root.Has("memory"));
  EXPECT_FALSE(root.Table("memory").GetBool("pinned", true));
  std::vector<ConfigReader> nodes = root.Tables("node");
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].GetString("name"), "a");
  EXPECT_EQ(nodes[0].GetU64("weight", {}, 1), 1u);
  EXPECT_EQ(nodes[1].GetString("name"), "b");
  EXPECT_EQ(nodes[1].GetU64("weight", {}, 1), 3u);
  EXPECT_TRUE(root.Finish().ok()) << ToString(root.Finish());
}

TEST(ConfigReaderTest, MissingKeysTakeTheirPresets) {
  ConfigReader root = Read("");
  EXPECT_EQ(root.GetString("a", "x"), "x");
  EXPECT_EQ(root.GetString("a2", ""), "");
  EXPECT_EQ(root.GetU64("b", {1, 2}, 99), 99u) << "presets are not checked";
  EXPECT_EQ(root.GetBytes("c", {}, kMiB), kMiB);
  EXPECT_EQ(root.GetDurationMs("d", {}, 5), 5u);
  EXPECT_TRUE(root.GetBool("e", true));
  EXPECT_EQ(root.GetChoice("f", {"p", "q"}, "q"), "q");
  EXPECT_EQ(root.Table("t").Table("u").GetU64("g", {}, 3), 3u);
  EXPECT_TRUE(root.Tables("n").empty());
  EXPECT_FALSE(root.Has("a"));
  EXPECT_FALSE(root.Table("t").Has("a"));
  EXPECT_TRUE(root.Finish().ok()) << ToString(root.Finish());
}

struct Case {
  const char* text;
  const char* wanted;  // the whole message, or its beginning
  std::function<void(ConfigReader&)> read;
};

void ExpectErrors(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    ConfigReader root = Read(c.text);
    c.read(root);
    const Status status = root.Finish();
    EXPECT_EQ(CodeOf(status), ErrorCode::kInvalidArgument) << c.text;
    EXPECT_EQ(MessageOf(status).rfind(c.wanted, 0), 0u)
        << "wanted: " << c.wanted << "\ngot:    " << MessageOf(status);
  }
}

TEST(ConfigReaderTest, RefusesWrongTypes) {
  const auto u64 = [](ConfigReader& r) { EXPECT_EQ(r.GetU64("x", {3, 9}), 3u); };
  const auto preset = [](ConfigReader& r) { EXPECT_EQ(r.GetU64("x", {3, 9}, 5), 5u); };
  const auto bytes = [](ConfigReader& r) { r.GetBytes("x", {}); };
  const auto duration = [](ConfigReader& r) { r.GetDurationMs("x", {}); };
  const auto text = [](ConfigReader& r) { EXPECT_EQ(r.GetString("x"), ""); };
  const auto flag = [](ConfigReader& r) { EXPECT_FALSE(r.GetBool("x")); };
  const auto list = [](ConfigReader& r) { EXPECT_TRUE(r.GetU64List("x", {3, 9}).empty()); };
  const auto table = [](ConfigReader& r) { r.Table("x"); };
  const auto tables = [](ConfigReader& r) { EXPECT_TRUE(r.Tables("x").empty()); };
  ExpectErrors({
      {"x = \"5\"", "t.toml:1: key 'x': is a string; write an integer", u64},
      {"\nx = 5.0", "t.toml:2: key 'x': is a floating-point number; write an integer", preset},
      {"x = true", "t.toml:1: key 'x': is a boolean; write an integer", u64},
      {"x = [5]", "t.toml:1: key 'x': is an array; write an integer", u64},
      {"x = 1979-05-27", "t.toml:1: key 'x': is a date or time", u64},
      {"[x]", "t.toml:1: key 'x': is a table; write an integer", u64},
      {"x = 1.5", "t.toml:1: key 'x': is a floating-point number; write bytes", bytes},
      {"x = false", "t.toml:1: key 'x': is a boolean; write milliseconds", duration},
      {"x = 5", "t.toml:1: key 'x': is an integer; write a string", text},
      {"x = \"true\"", "t.toml:1: key 'x': is a string; write true or false", flag},
      {"x = 1", "t.toml:1: key 'x': is an integer; write true or false", flag},
      {"x = 4", "t.toml:1: key 'x': is an integer; write integers in brackets", list},
      {"x = [\"4\"]", "t.toml:1: key 'x': is a string; write integers only", list},
      {"x = [10]", "t.toml:1: key 'x': has 10; choose 3 to 9", list},
      {"x = 1", "t.toml:1: key 'x': is an integer; write a table, [x]", table},
      {"[[x]]", "t.toml:1: key 'x': is an array of tables; write a table", table},
      {"[x]", "t.toml:1: key 'x': is a table; write tables, each under [[x]]", tables},
      {"x = [1, 2]", "t.toml:1: key 'x': is an array; write tables", tables},
      {"x = [{a = 1}, 2]", "t.toml:1: key 'x': is an array; write tables", tables},
  });
}

TEST(ConfigReaderTest, RefusesValuesOutOfRange) {
  const auto u64 = [](ConfigReader& r) { EXPECT_EQ(r.GetU64("x", {3, 9}), 3u); };
  ExpectErrors({
      {"x = 2", "t.toml:1: key 'x': is 2; choose 3 to 9", u64},
      {"x = 10", "t.toml:1: key 'x': is 10; choose 3 to 9", u64},
      {"x = -4", "t.toml:1: key 'x': is -4; choose 3 to 9", u64},
      {"x = -1", "t.toml:1: key 'x': is -1; choose at least 0",
       [](ConfigReader& r) { r.GetU64("x", {}); }},
      {"x = \"1KiB\"", "t.toml:1: key 'x': is 1.0 KiB (1024 bytes); choose at least 1.0 MiB",
       [](ConfigReader& r) { r.GetBytes("x", {.min = kMiB}); }},
      {"x = \"1h\"", "t.toml:1: key 'x': is 3600000 ms; choose 0 ms to 60000 ms",
       [](ConfigReader& r) {
         r.GetDurationMs("x", {0, 60000});
       }},
      {"x = \"4GB\"", "t.toml:1: key 'x': '4GB' is not a size; write",
       [](ConfigReader& r) { r.GetBytes("x", {}); }},
      {"x = \"soon\"", "t.toml:1: key 'x': 'soon' is not a duration; write",
       [](ConfigReader& r) { r.GetDurationMs("x", {}); }},
      {"x = \"\"", "t.toml:1: key 'x': is empty; write a text",
       [](ConfigReader& r) { r.GetString("x"); }},
      {"x = \"red\"", "t.toml:1: key 'x': is \"red\"; choose \"green\", \"blue\"",
       [](ConfigReader& r) {
         EXPECT_EQ(r.GetChoice("x", {"green", "blue"}), "green");
       }},
      {"x = 1", "t.toml:1: key 'x': is an integer; write a string",
       [](ConfigReader& r) { EXPECT_EQ(r.GetChoice("x", {"green"}, "green"), "green"); }},
  });
}

TEST(ConfigReaderTest, ReportsMissingRequiredKeysWithTheirTable) {
  ExpectErrors({
      {"", "t.toml: key 'x': is missing and has no default; add it",
       [](ConfigReader& r) { r.GetU64("x", {}); }},
      {"", "t.toml: key 'memory.budget': is missing",
       [](ConfigReader& r) { r.Table("memory").GetBytes("budget", {}); }},
      {"\n\n[memory]\n", "t.toml:3: key 'memory.budget': is missing",
       [](ConfigReader& r) { r.Table("memory").GetBytes("budget", {}); }},
      {"[[node]]\nname = 'a'\n[[node]]\n", "t.toml:3: key 'node[1].name': is missing",
       [](ConfigReader& r) {
         for (ConfigReader& node : r.Tables("node")) node.GetString("name");
       }},
  });
}

TEST(ConfigReaderTest, RefusesUnknownKeysAndSuggestsTheNearest) {
  const auto read = [](ConfigReader& r) {
    r.GetString("listen_address", "");
    r.GetU64("threads", {}, 1);
    r.Table("memory").GetBytes("budget_bytes", {}, 1);
    for (ConfigReader& node : r.Tables("node")) node.GetU64("weight", {}, 1);
  };
  ExpectErrors({
      {"thread = 1", "t.toml:1: key 'thread': unknown key; did you mean 'threads'?", read},
      {"[memory]\nbugdet_bytes = 1",
       "t.toml:2: key 'memory.bugdet_bytes': unknown key; did you mean 'budget_bytes'?", read},
      {"[memmory]\nbudget_bytes = 1",
       "t.toml:1: key 'memmory': unknown key; did you mean 'memory'?", read},
      {"colour = 1",
       "t.toml:1: key 'colour': unknown key; known here are listen_address, memory, node, threads",
       read},
      {"[[node]]\n[[node]]\nwieght = 1",
       "t.toml:3: key 'node[1].wieght': unknown key; did you mean 'weight'?", read},
      {"memory.budget_byte = 1",
       "t.toml:1: key 'memory.budget_byte': unknown key; did you mean 'budget_bytes'?", read},
      {"[a.b]\nc = 1", "t.toml:1: key 'a': unknown key; known here", read},
  });
  ConfigReader nothing_known = Read("x = 1");
  EXPECT_EQ(MessageOf(nothing_known.Finish()), "t.toml:1: key 'x': unknown key; remove it");
}

TEST(ConfigReaderTest, ReportsAllErrorsInLineOrder) {
  ConfigReader root = Read("b = 1\na = -1\nc = \"x\"\n");
  root.GetU64("c", {});
  root.GetU64("a", {});
  root.AddError("a", "cannot be had together with 'c'; remove one");
  EXPECT_EQ(MessageOf(root.Finish()),
            "t.toml:1: key 'b': unknown key; did you mean 'a'?\n"
            "t.toml:2: key 'a': is -1; choose at least 0\n"
            "t.toml:2: key 'a': cannot be had together with 'c'; remove one\n"
            "t.toml:3: key 'c': is a string; write an integer");
}

TEST(ConfigReaderTest, LimitsTheNumberOfReportedErrors) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += fmt::format("key{} = 1\n", i);
  const std::string message = MessageOf(Read(text).Finish());
  EXPECT_NE(message.find("t.toml:20: "), std::string::npos);
  EXPECT_EQ(message.find("t.toml:21: "), std::string::npos);
  EXPECT_NE(message.find("and 30 more"), std::string::npos);
}

TEST(ConfigReaderTest, TheSameTableMayBeVisitedTwice) {
  ConfigReader root = Read("[memory]\na = 1\nb = 2\n");
  EXPECT_EQ(root.Table("memory").GetU64("a", {}), 1u);
  EXPECT_EQ(root.Table("memory").GetU64("b", {}), 2u);
  EXPECT_TRUE(root.Finish().ok()) << ToString(root.Finish());
}

TEST(ConfigReaderTest, TextThatIsNotTomlIsRefusedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a = 1\na = 2\n", "t.toml:2: not valid TOML"},            // duplicate key
      {"[m]\nx = 1\n[m]\ny = 1\n", "t.toml:3: not valid TOML"},  // duplicate table
      {"a = 1\nb =\n", "t.toml:2: not valid TOML"},
      {"a = 99999999999999999999\n", "t.toml:1: not valid TOML"},
      {"a = \"\xff\"\n", "t.toml:1: not valid TOML"},
      {"just words", "t.toml:1: not valid TOML"},
  };
  for (const auto& [text, wanted] : cases) {
    const StatusOr<ConfigReader> reader = ConfigReader::Parse(text, "t.toml");
    EXPECT_EQ(CodeOf(reader.status()), ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(MessageOf(reader.status()).rfind(wanted, 0), 0u) << MessageOf(reader.status());
  }
}

TEST(ConfigReaderTest, ReadsFiles) {
  std::string directory = testing::TempDir() + "luwu_config_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/luwud.toml";
  StatusOr<ConfigReader> missing = ConfigReader::ReadFile(path);
  EXPECT_EQ(CodeOf(missing.status()), ErrorCode::kNotFound);
  EXPECT_NE(MessageOf(missing.status()).find(path), std::string::npos);

  std::ofstream(path) << "a = 5\n";
  StatusOr<ConfigReader> reader = ConfigReader::ReadFile(path);
  ASSERT_TRUE(reader.ok()) << ToString(reader.status());
  EXPECT_EQ(reader->GetU64("a", {}), 5u);
  EXPECT_TRUE(reader->Finish().ok());

  std::ofstream(path, std::ios::trunc) << "";
  EXPECT_TRUE(ConfigReader::ReadFile(path).ok()) << "an empty file is a document without keys";
  EXPECT_FALSE(ConfigReader::ReadFile(directory).ok()) << "a directory is not";
  ::unlink(path.c_str());
  ::rmdir(directory.c_str());
}

}  // namespace
}  // namespace luwu
