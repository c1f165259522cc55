// The luwuctl program against fake daemons: what it prints where, and its exit codes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "tests/unit/cli/fake_daemon.h"

namespace luwu::cli {
namespace {

using Json = nlohmann::json;
using std::string_literals::operator""s;

constexpr uint64_t kTimeoutMs = 30'000;
// Nothing listens there: a port below 1024 that no service has.
constexpr char kNobody[] = "127.0.0.1:9";

struct Result {
  int exit_code = -1;
  std::string out;
  std::string error;
};

[[noreturn]] void Exec(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LUWUCTL_PATH);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// Reads until the end of the file, or until `enough` holds for what came so far.
std::string ReadAll(int fd, const std::function<bool(const std::string&)>& enough = nullptr) {
  std::string text;
  const TimePoint deadline = DeadlineAfter(kTimeoutMs);
  for (;;) {
    pollfd waiter = {.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&waiter, 1, static_cast<int>(MillisecondsUntil(deadline))) != 1) return text;
    char buffer[4096];
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (enough && enough(text)) return text;
  }
}

int ExitCode(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// With `stdout_fd` its output goes there instead.
Result RunLuwuctl(const std::vector<std::string>& arguments, int stdout_fd = -1) {
  int out[2];
  int error[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(error, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(stdout_fd >= 0 ? stdout_fd : out[1], STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    Exec(arguments);
  }
  close(out[1]);
  close(error[1]);
  Result result;
  result.out = ReadAll(out[0]);
  result.error = ReadAll(error[0]);
  close(out[0]);
  close(error[0]);
  result.exit_code = ExitCode(pid);
  return result;
}

class LuwuctlTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("LUWU_ENDPOINT");
    for (FakeDaemon* daemon : {&first_, &second_}) {
      daemon->set_nodes({{"node0", first_.address()}, {"node1", second_.address()}});
      daemon->status().set_overall(v1::SEVERITY_OK);
      v1::JobStatus* job = daemon->status().add_jobs();
      job->set_name("gpt");
      job->set_state("training");
      job->set_current_step(41);
      job->set_world_size(2);
      job->set_state_bytes(uint64_t{1} << 30);
      for (uint32_t rank : {0u, 1u}) {
        v1::WorkerStatus* worker = job->add_workers();
        worker->set_rank(rank);
        worker->set_lease_left_ms(5000);
      }
    }
    first_.status().set_node("node0");
    second_.status().set_node("node1");
  }

  Result Ask(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--endpoint", first_.address()});
    return RunLuwuctl(arguments);
  }

  FakeDaemon first_;
  FakeDaemon second_;
};

TEST_F(LuwuctlTest, StatusFindsTheOtherNodesAndAddsUpTheJob) {
  const Result result = Ask({"status"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.error, "");
  EXPECT_NE(result.out.find(second_.address()), std::string::npos);
  EXPECT_NE(result.out.find("2 of 2 nodes answering, overall OK"), std::string::npos);
  EXPECT_NE(result.out.find("2.0 GiB"), std::string::npos) << result.out;  // of both nodes
  EXPECT_NE(result.out.find("2/2"), std::string::npos);
}

TEST_F(LuwuctlTest, UpdateModeNormAndLossScaleOfAJobAreShown) {
  const std::string plain = Ask({"status"}).out;
  for (FakeDaemon* daemon : {&first_, &second_}) {
    v1::JobStatus* job = daemon->status().mutable_jobs(0);
    job->set_optimizer("lion");
    job->set_state_precision("blockwise8");
    job->set_master_format("split");
    job->set_update_mode("speculative");
    job->set_last_outcome("applied");
    job->set_grad_norm(0.6875);
    job->set_loss_scale(65536);
    job->set_clipped_steps(137);
    job->set_held_bytes(uint64_t{3} << 20);
  }
  for (const char* command : {"status", "jobs"}) {
    const std::string out = Ask({command}).out;
    for (const char* text : {"lion blockwise8/split", "speculative", "0.6875", "65536", "137"}) {
      EXPECT_NE(out.find(text), std::string::npos) << command << " " << text << "\n" << out;
      EXPECT_EQ(plain.find(text), std::string::npos) << plain;
    }
  }
  EXPECT_NE(Ask({"jobs"}).out.find("3.0 MiB"), std::string::npos);
  const Json parsed = Json::parse(Ask({"jobs", "-o", "json"}).out);
  EXPECT_EQ(parsed["nodes"][1]["jobs"][0]["grad_norm"], 0.6875);
}

TEST_F(LuwuctlTest, WorkerThatANodeHasLostIsNotCounted) {
  second_.status().mutable_jobs(0)->mutable_workers(1)->set_lease_left_ms(0);
  EXPECT_NE(Ask({"status"}).out.find("1/2"), std::string::npos);
}

TEST_F(LuwuctlTest, NodeThatIsDownIsARowWithItsErrorAndExitCodeThree) {
  first_.set_nodes({{"node0", first_.address()}, {"node1", kNobody}});
  for (const char* command : {"status", "jobs", "health"}) {
    const Result table = Ask({command});
    EXPECT_EQ(table.exit_code, 3) << command;
    EXPECT_NE(table.out.find(kNobody), std::string::npos) << table.out;
    EXPECT_NE(table.out.find("connection refused"), std::string::npos) << table.out;
    const Result json = Ask({command, "-o", "json"});
    EXPECT_EQ(json.exit_code, 3) << command;
    const Json parsed = Json::parse(json.out);
    EXPECT_EQ(parsed["overall"], "SEVERITY_ERR");
    EXPECT_TRUE(parsed["nodes"][0]["error"].is_null());
    EXPECT_EQ(parsed["nodes"][1]["name"], "node1");
    EXPECT_TRUE(parsed["nodes"][1]["error"].is_string());
  }
}

TEST_F(LuwuctlTest, NoDaemonAtAllIsExitCodeOneWithTheReasonOnStderr) {
  const Result result = RunLuwuctl({"status", "-e", kNobody});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.error.find(kNobody), std::string::npos);
}

// Bug: the exit code was 0 although nobody got the output.
TEST_F(LuwuctlTest, OutputThatCannotBeWrittenIsAFailureWithAMessage) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"jobs", "-e", first_.address()},
        {"--help"},
        {"status", "-o", "json", "-e", first_.address()}}) {
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(full, 0);
    const Result result = RunLuwuctl(arguments, full);
    close(full);
    EXPECT_EQ(result.exit_code, 1) << arguments[0];
    EXPECT_NE(result.error.find("output could not be written"), std::string::npos) << result.error;
  }
}

// Bug: raw log lines of gRPC came on stderr.
TEST_F(LuwuctlTest, AnEndpointThatCanBeNoneIsWrongUsageSaidInOneWay) {
  for (const char* endpoint : {"junk", ""}) {
    const Result result = RunLuwuctl({"-e", endpoint, "jobs"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.error.find("is not \"host:port\""), std::string::npos) << result.error;
    EXPECT_EQ(result.error.find(".cc:"), std::string::npos) << result.error;
  }
}

TEST_F(LuwuctlTest, GrpcWritesNothingOfItsOwnToStderr) {
  const std::string no_name = std::string(64, 'x') + ".invalid:7070";
  for (const std::string& endpoint : {no_name, "[junk]:1"s, "unix:/no/such/socket"s}) {
    const Result result = RunLuwuctl({"-e", endpoint, "jobs", "--timeout-ms", "2000"});
    EXPECT_EQ(result.exit_code, 1) << endpoint;
    EXPECT_TRUE(result.error.starts_with("luwuctl: ")) << result.error;
    EXPECT_EQ(result.error.find(".cc:"), std::string::npos) << result.error;
  }
}

TEST_F(LuwuctlTest, OneEndpointOfSeveralIsEnough) {
  const Result result = Ask({"status", "-o", "json", "-e", kNobody});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(Json::parse(result.out)["nodes"].size(), 3u);  // both nodes, and the dead endpoint
}

TEST_F(LuwuctlTest, HealthIsThreeWhenADaemonReportsErrOrDoesNotServe) {
  EXPECT_EQ(Ask({"health"}).exit_code, 0);
  second_.set_health(grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  const Result result = Ask({"health", "-o", "json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(Json::parse(result.out)["nodes"][1]["health"], "NOT_SERVING");
  second_.set_health(grpc::health::v1::HealthCheckResponse::SERVING);
  second_.status().set_overall(v1::SEVERITY_ERR);
  EXPECT_EQ(Ask({"health"}).exit_code, 3);
  EXPECT_EQ(Ask({"status"}).exit_code, 3);
}

TEST_F(LuwuctlTest, WarningsAreShownAndAreNotFailures) {
  first_.status().set_overall(v1::SEVERITY_WARN);
  v1::Check* check = first_.status().add_checks();
  check->set_name("WORKER_LOST");
  check->set_severity(v1::SEVERITY_WARN);
  check->set_summary("job gpt lost rank 1");
  check->set_hint("restart it");
  check->set_since_unix_ms(1'700'000'000'999);
  const Result result = Ask({"status"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("2023-11-14 22:13:20Z"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("job gpt lost rank 1 (restart it)"), std::string::npos) << result.out;
}

TEST_F(LuwuctlTest, JobsJsonHoldsTheJobsOfEachNode) {
  const Json json = Json::parse(Ask({"jobs", "-o", "json"}).out);
  EXPECT_EQ(json["nodes"][0]["jobs"][0]["name"], "gpt");
  EXPECT_EQ(json["nodes"][1]["jobs"][0]["current_step"], 41);
  EXPECT_EQ(json["nodes"][1]["jobs"][0]["workers"].size(), 2u);
}

TEST_F(LuwuctlTest, DeleteGoesToEveryNode) {
  const Result result = Ask({"delete", "gpt", "--force"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  for (FakeDaemon* daemon : {&first_, &second_}) {
    ASSERT_EQ(daemon->deletes.size(), 1u);
    EXPECT_EQ(daemon->deletes[0].job(), "gpt");
    EXPECT_TRUE(daemon->deletes[0].force());
  }
}

TEST_F(LuwuctlTest, DeleteFailsWhenNoNodeHasTheJobOrOneRefuses) {
  first_.set_delete_result(Error(ErrorCode::kNotFound, "no job gpt"));
  EXPECT_EQ(Ask({"delete", "gpt"}).exit_code, 0);  // a left-over on one node
  second_.set_delete_result(Error(ErrorCode::kNotFound, "no job gpt"));
  const Result absent = Ask({"delete", "gpt"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(absent.error.find("no job gpt"), std::string::npos);
  second_.set_delete_result(Error(ErrorCode::kState, "job gpt has 2 open sessions"));
  const Result refused = Ask({"delete", "gpt", "-o", "json"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.error.find("2 open sessions"), std::string::npos);
  EXPECT_EQ(Json::parse(refused.out)["nodes"][1]["deleted"], false);
}

// Bug: gRPC's text came as it was, without what to do.
TEST_F(LuwuctlTest, CheckpointsOfNobodyAreASentence) {
  const Result result = RunLuwuctl({"checkpoint", "list", "gpt", "-e", kNobody});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(result.error.starts_with("luwuctl: no daemon answers at "s + kNobody))
      << result.error;
  EXPECT_NE(result.error.find("is luwud running there?"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("all addresses"), std::string::npos) << result.error;
}

// Bug: a refusal by the lead left the other nodes without their parts.
TEST_F(LuwuctlTest, WhatTheLeadRefusesToDeleteStaysEverywhereUnlessForced) {
  for (FakeDaemon* daemon : {&first_, &second_}) daemon->set_weight(1);
  first_.set_delete_result(Error(ErrorCode::kState, "job gpt has 2 open sessions"));
  const Result refused = Ask({"delete", "gpt"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.error.find("2 open sessions"), std::string::npos) << refused.error;
  EXPECT_EQ(second_.deletes.size(), 0u);
  EXPECT_EQ(Ask({"delete", "gpt", "--force"}).exit_code, 1);
  EXPECT_EQ(second_.deletes.size(), 1u);
}

// Bug: the last step alone was taken for all of them.
TEST_F(LuwuctlTest, PlanGoesByTheMeanOfTheLastSteps) {
  v1::JobTiers* tiers = first_.status().mutable_jobs(0)->mutable_tiers();
  tiers->set_streamed_bytes(1000);
  tiers->set_last_step_seconds(60);
  EXPECT_EQ(
      Json::parse(Ask({"plan", "gpt", "-o", "json"}).out)["nodes"][0]["written_bytes_per_day"],
      0);  // not known yet
  tiers->set_mean_step_seconds(2);
  tiers->set_timed_steps(17);
  const Json plan = Json::parse(Ask({"plan", "gpt", "-o", "json"}).out)["nodes"][0];
  EXPECT_EQ(plan["written_bytes_per_day"], 1000 * 86400 / 2);
  EXPECT_EQ(plan["mean_step_seconds"], 2);
  EXPECT_NE(Ask({"plan", "gpt"}).out.find("2.00 s of 17"), std::string::npos);
}

// Bug: 3, "a node does not answer", where delete said 1.
TEST_F(LuwuctlTest, PlanOfAMissingJobFailsLikeOtherCommands) {
  const Result refused = Ask({"plan", "absent"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.error, "luwuctl: no node has a job 'absent'\n");
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_F(LuwuctlTest, WatchIntoAPipeIsFramesOfPlainTextUntilASignal) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    Exec({"status", "--watch", "0.1", "-e", first_.address()});
  }
  close(out[1]);
  std::string text =
      ReadAll(out[0], [](const std::string& so_far) { return Count(so_far, "answering") >= 3; });
  kill(pid, SIGINT);
  text += ReadAll(out[0]);
  close(out[0]);
  EXPECT_EQ(ExitCode(pid), 0);
  EXPECT_GE(Count(text, "answering"), 3u);
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST_F(LuwuctlTest, WatchOnATerminalRedrawsInPlaceAndGivesTheCursorBack) {
  int terminal = -1;
  winsize window = {.ws_row = 6, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &window);
  if (pid == 0) Exec({"status", "--watch", "0.1", "-e", first_.address()});
  std::string text =
      ReadAll(terminal, [](const std::string& so_far) { return Count(so_far, "\033[J") >= 3; });
  kill(pid, SIGTERM);
  text += ReadAll(terminal);
  close(terminal);
  EXPECT_EQ(ExitCode(pid), 0);
  EXPECT_EQ(Count(text, "\033[2J"), 1u);    // cleared once, then drawn over
  EXPECT_EQ(Count(text, "\033[?25l"), 1u);  // cursor hidden once ...
  EXPECT_EQ(Count(text, "\033[?25h"), 1u);  // ... and given back
  // Cut to the window: one frame never has more than rows - 1 line ends, so it cannot scroll.
  const size_t begin = text.find("\033[H");
  const size_t end = text.find("\033[J");
  EXPECT_EQ(Count(text.substr(begin, end - begin), "\n"), 5u);
  EXPECT_NE(text.find("..."), std::string::npos);
}

TEST_F(LuwuctlTest, WatchAsJsonIsOneDocumentALine) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    Exec({"status", "--watch", "0.1", "-o", "json", "-e", first_.address()});
  }
  close(out[1]);
  const std::string text =
      ReadAll(out[0], [](const std::string& so_far) { return Count(so_far, "\n") >= 2; });
  kill(pid, SIGINT);
  close(out[0]);
  waitpid(pid, nullptr, 0);
  const size_t first_end = text.find('\n');
  ASSERT_NE(first_end, std::string::npos);
  EXPECT_EQ(Json::parse(text.substr(0, first_end))["nodes"].size(), 2u);
}

}  // namespace
}  // namespace luwu::cli
