#include "client/cli/options.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace luwu::cli {
namespace {

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("LUWU_ENDPOINT"); }

  std::optional<int> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "luwuctl");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    options_ = Options();
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const auto code = ParseCommandLine(static_cast<int>(argv.size()), argv.data(), &options_);
    out_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return code;
  }

  Options options_;
  std::string out_;
  std::string error_;
};

TEST_F(OptionsTest, DefaultsToTheLocalDaemon) {
  EXPECT_EQ(Parse({"status"}), std::nullopt);
  EXPECT_EQ(options_.command, Command::kStatus);
  EXPECT_EQ(options_.endpoints, std::vector<std::string>{"127.0.0.1:7070"});
  EXPECT_FALSE(options_.json);
  EXPECT_FALSE(options_.watch_s.has_value());
}

TEST_F(OptionsTest, EndpointsFromTheEnvironmentYieldToTheCommandLine) {
  setenv("LUWU_ENDPOINT", "a:1,b:2", 1);
  EXPECT_EQ(Parse({"jobs"}), std::nullopt);
  EXPECT_EQ(options_.endpoints, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(Parse({"jobs", "-e", "c:3", "--endpoint", "d:4"}), std::nullopt);
  EXPECT_EQ(options_.endpoints, (std::vector<std::string>{"c:3", "d:4"}));
}

TEST_F(OptionsTest, OptionsMayFollowTheCommand) {
  EXPECT_EQ(Parse({"health", "-o", "json", "--timeout-ms", "10"}), std::nullopt);
  EXPECT_EQ(options_.command, Command::kHealth);
  EXPECT_TRUE(options_.json);
  EXPECT_EQ(options_.timeout_ms, 10u);
}

TEST_F(OptionsTest, WatchTakesAnOptionalNumber) {
  EXPECT_EQ(Parse({"--watch", "status"}), std::nullopt);
  EXPECT_EQ(options_.watch_s, 2.0);
  EXPECT_EQ(Parse({"status", "--watch", "0.5"}), std::nullopt);
  EXPECT_EQ(options_.watch_s, 0.5);
}

TEST_F(OptionsTest, WrongUsageExitsWithTwoAndExplainsOnStderr) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"statsu"},
      {"status", "-o", "xml"},
      {"status", "--timeout-ms", "0"},
      {"status", "--timeout-ms", "-5"},
      {"status", "--watch", "soon"},
      {"status", "--watch", "0"},
      {"status", "--no-such-option"},
      {"status", "extra"},
      {"delete"},
      {"delete", "job", "--watch"},
      {"status", "-e", "junk"},
      {"status", "-e", ""},
      {"status", "-e", "a:1,junk"},
      {"status", "-e", "a:0"},
  };
  for (const auto& arguments : wrong) {
    EXPECT_EQ(Parse(arguments), kExitUsage) << testing::PrintToString(arguments);
    EXPECT_EQ(out_, "") << testing::PrintToString(arguments);
    EXPECT_NE(error_, "") << testing::PrintToString(arguments);
  }
}

TEST_F(OptionsTest, HelpGoesToStdoutAndNamesTheExitCodes) {
  EXPECT_EQ(Parse({"--help"}), kExitOk);
  EXPECT_NE(out_.find("Exit codes"), std::string::npos);
  EXPECT_EQ(error_, "");
}

TEST_F(OptionsTest, ExportIsOfTheJobOrOfACheckpointWithAName) {
  EXPECT_EQ(Parse({"export", "job", "/out"}), std::nullopt);
  EXPECT_EQ(options_.checkpoint, "");
  EXPECT_EQ(Parse({"export", "job", "/out", "--checkpoint", "best"}), std::nullopt);
  EXPECT_EQ(options_.checkpoint, "best");
  EXPECT_EQ(options_.path, "/out");
  EXPECT_EQ(Parse({"export", "job", "/out", "--checkpoint", ""}), kExitUsage);
}

TEST_F(OptionsTest, DeleteTakesItsJob) {
  EXPECT_EQ(Parse({"delete", "gpt", "--force"}), std::nullopt);
  EXPECT_EQ(options_.command, Command::kDelete);
  EXPECT_EQ(options_.job, "gpt");
  EXPECT_TRUE(options_.force);
  EXPECT_EQ(Parse({"delete", "-e", "a:1", "gpt"}), std::nullopt);
  EXPECT_EQ(options_.job, "gpt");
  EXPECT_EQ(options_.endpoints, std::vector<std::string>{"a:1"});
}

// Bug: "A subcommand is required" was all that was said.
TEST_F(OptionsTest, CommandThatDoesNotExistIsNamedWithTheOneThatWasMeant) {
  EXPECT_EQ(Parse({"stauts"}), kExitUsage);
  EXPECT_NE(error_.find("no command 'stauts'; did you mean 'status'?"), std::string::npos)
      << error_;
  EXPECT_EQ(Parse({"checkpoint", "lst", "gpt"}), kExitUsage);
  EXPECT_NE(error_.find("no command 'lst'; did you mean 'list'?"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"-o", "json", "xyzzy"}), kExitUsage);
  EXPECT_NE(error_.find("no command 'xyzzy'. Commands: status, jobs"), std::string::npos) << error_;
  EXPECT_EQ(Parse({"status", "surplus"}), kExitUsage);
  EXPECT_EQ(error_.find("no command"), std::string::npos) << error_;
}

TEST_F(OptionsTest, NewCheckpointsHaveNamesThatAreNothingElse) {
  for (const char* name : {".", "..", "-x", "a/b", ""}) {
    EXPECT_EQ(Parse({"checkpoint", "create", "--", "gpt", name}), kExitUsage) << name;
    EXPECT_NE(error_.find("letter or digit"), std::string::npos) << error_;
    // One that a former release has made can be got rid of.
    EXPECT_EQ(Parse({"checkpoint", "delete", "--", "gpt", name}), std::nullopt) << error_;
  }
  EXPECT_EQ(Parse({"checkpoint", "create", "gpt", "best-1.0"}), std::nullopt) << error_;
}

}  // namespace
}  // namespace luwu::cli
