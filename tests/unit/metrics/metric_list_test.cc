// The table of metrics against Prometheus' rules for names, and its readers against values by hand.
#include "server/metrics/metric_list.h"

#include <limits>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>

namespace luwu {
namespace {

// Values of one metric by their labels, joined by commas.
std::map<std::string, double> Read(std::string_view name, const DaemonSnapshot& snapshot) {
  std::map<std::string, double> out;
  for (const Metric& metric : AllMetrics()) {
    if (metric.name != name) continue;
    for (const MetricSample& sample : metric.read(snapshot)) {
      EXPECT_EQ(sample.labels.size(), metric.labels.size()) << name;
      std::string key;
      for (const std::string& label : sample.labels) key += (key.empty() ? "" : ",") + label;
      EXPECT_TRUE(out.emplace(key, sample.value).second) << name << " twice for " << key;
    }
  }
  return out;
}

// With everything there is to be shown.
DaemonSnapshot FullSnapshot() {
  DaemonSnapshot node;
  node.node = "n0";
  node.version = "1.2.3";
  node.kernel = "AVX2";
  node.storage.emplace();
  JobSnapshot job;
  job.name = "gpt";
  job.state = JobState::kTraining;
  job.world_size = 2;
  job.durable_every = 4;
  job.tiers.timed_steps = 1;
  job.workers.resize(2);
  job.workers[0].lease_left_ms = 1500;
  job.workers[1].rank = 1;
  node.jobs.push_back(job);
  node.identities.push_back({.identity = "spiffe://x/a",
                             .role = Role::kTrainer,
                             .sessions = 1,
                             .slots = 4,
                             .owned = {.jobs = 2, .memory_bytes = 77},
                             .quota = {.sessions = 8, .slots = 32, .memory_bytes = 99}});
  return node;
}

TEST(MetricList, NamesFollowTheConventions) {
  const std::regex form("luwu_[a-z]+(_[a-z]+)*");
  // Base units only, and no unit that is spelt in another way.
  const std::regex foreign(".*_(ms|us|ns|milliseconds|minutes|hours|kib|mib|gib|percent)(_.*)?");
  const std::set<std::string_view> label_names = {
      "node",       "version",   "kernel",  "check", "severity", "state",           "engine",
      "job_name",   "optimizer", "part",    "tier",  "rank",     "state_precision", "update_mode",
      "durability", "outcome",   "identity"};
  std::set<std::string_view> names;
  for (const Metric& metric : AllMetrics()) {
    const std::string name(metric.name);
    EXPECT_TRUE(std::regex_match(name, form)) << name;
    EXPECT_FALSE(std::regex_match(name, foreign)) << name;
    EXPECT_EQ(name.ends_with("_total"), metric.kind == MetricKind::kCounter) << name;
    EXPECT_NE(metric.help, "") << name;
    EXPECT_TRUE(names.insert(metric.name).second) << name << " twice";
    for (const std::string_view label : metric.labels) {
      EXPECT_TRUE(label_names.contains(label)) << name << " " << label;
    }
  }
}

TEST(MetricList, EveryMetricHasASampleWithItsLabels) {
  const DaemonSnapshot node = FullSnapshot();
  for (const Metric& metric : AllMetrics()) {
    EXPECT_FALSE(Read(metric.name, node).empty()) << metric.name;
  }
}

TEST(MetricList, ShowsNothingOfWhatIsNotThere) {
  const DaemonSnapshot empty;
  for (const Metric& metric : AllMetrics()) {
    const bool absent =
        metric.name.starts_with("luwu_storage_") || metric.name.starts_with("luwu_job_") ||
        metric.name.starts_with("luwu_worker_") || metric.name.starts_with("luwu_identity_");
    EXPECT_EQ(Read(metric.name, empty).empty(), absent) << metric.name;
  }
  DaemonSnapshot node = FullSnapshot();
  node.jobs[0].durable_every = 0;
  node.jobs[0].tiers.timed_steps = 0;
  EXPECT_TRUE(Read("luwu_job_undurable_steps", node).empty());
  EXPECT_TRUE(Read("luwu_job_step_mean_seconds", node).empty());
}

TEST(MetricList, CountsEveryCheckAlsoWhileItIsNotRaised) {
  DaemonSnapshot node;
  node.checks = {{"WORKER_LOST", Severity::kErr, "", ""},
                 {"WORKER_LOST", Severity::kErr, "", ""},
                 {"STEP_STALLED", Severity::kWarn, "", ""}};
  const std::map<std::string, double> checks = Read("luwu_checks", node);
  EXPECT_EQ(checks.size(), kCheckNames.size());
  EXPECT_EQ(checks.at("WORKER_LOST,err"), 2);
  EXPECT_EQ(checks.at("STEP_STALLED,warn"), 1);
  EXPECT_EQ(checks.at("JOB_LOST,err"), 0);
}

TEST(MetricList, CountsJobsInEveryState) {
  DaemonSnapshot node = FullSnapshot();
  node.jobs.push_back(node.jobs[0]);
  node.jobs[1].name = "bad";
  node.jobs[1].state = JobState::kFailed;
  node.absent_jobs.resize(2);
  node.absent_jobs[0].phase = JobPhase::kLost;
  node.absent_jobs[1].phase = JobPhase::kRecovering;
  const std::map<std::string, double> expected = {
      {"loading", 0}, {"training", 1}, {"failed", 1}, {"recovering", 1}, {"lost", 1}};
  EXPECT_EQ(Read("luwu_jobs", node), expected);
  EXPECT_EQ(Read("luwu_job_failed", node), (std::map<std::string, double>{{"gpt", 0}, {"bad", 1}}));
}

TEST(MetricList, ShowsLimitsOfIdentitiesOnlyWhereThereAreSome) {
  DaemonSnapshot node = FullSnapshot();
  node.identities.push_back({.identity = "free", .role = Role::kOperator});
  const std::map<std::string, double> sessions = {{"spiffe://x/a", 1}, {"free", 0}};
  EXPECT_EQ(Read("luwu_identity_sessions", node), sessions);
  const auto only = [](double value) {
    return std::map<std::string, double>{{"spiffe://x/a", value}};
  };
  EXPECT_EQ(Read("luwu_identity_sessions_max", node), only(8));
  EXPECT_EQ(Read("luwu_identity_slots_max", node), only(32));
  EXPECT_EQ(Read("luwu_identity_memory_max_bytes", node), only(99));
  EXPECT_EQ(Read("luwu_identity_memory_bytes", node).at("spiffe://x/a"), 77);
}

TEST(MetricList, TellsHowManyStepsACrashWouldUndo) {
  DaemonSnapshot node = FullSnapshot();
  node.jobs[0].current_step = 10;
  EXPECT_EQ(Read("luwu_job_undurable_steps", node).at("gpt"), 10);  // no point yet
  node.jobs[0].durable_step = 8;
  EXPECT_EQ(Read("luwu_job_undurable_steps", node).at("gpt"), 2);
  node.jobs[0].durable_step = 11;
  EXPECT_EQ(Read("luwu_job_undurable_steps", node).at("gpt"), 0);
}

TEST(MetricList, ReadsWorkersStepsAndTimesInBaseUnits) {
  DaemonSnapshot node = FullSnapshot();
  node.started_unix_ms = 1'700'000'000'500;
  node.jobs[0].applied_steps = 7;
  node.jobs[0].skipped_steps = 3;
  EXPECT_EQ(Read("luwu_start_time_seconds", node).at(""), 1'700'000'000.5);
  EXPECT_EQ(Read("luwu_job_steps_total", node),
            (std::map<std::string, double>{{"gpt,applied", 7}, {"gpt,skipped", 3}}));
  EXPECT_EQ(Read("luwu_job_workers", node),
            (std::map<std::string, double>{{"gpt,connected", 1}, {"gpt,lost", 1}}));
  EXPECT_EQ(Read("luwu_worker_lease_left_seconds", node),
            (std::map<std::string, double>{{"gpt,0", 1.5}, {"gpt,1", 0}}));
}

TEST(MetricList, TheMarkdownHasARowForEveryMetric) {
  const std::string text = MetricsMarkdown();
  for (const Metric& metric : AllMetrics()) {
    EXPECT_NE(text.find("| `" + std::string(metric.name) + "` |"), std::string::npos);
  }
}

}  // namespace
}  // namespace luwu
