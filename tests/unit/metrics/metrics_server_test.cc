// The page as a client of HTTP sees it.
#include "server/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"

namespace luwu {
namespace {

UniqueFd Connect(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Sends `request` and returns everything that comes until the other side closes.
std::string Ask(uint16_t port, const std::string& request) {
  const UniqueFd fd = Connect(port);
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  ::shutdown(fd.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  while (true) {
    const ssize_t got = ::recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return answer;
    answer.append(buffer, static_cast<size_t>(got));
  }
}

std::string Scrape(uint16_t port) {
  return Ask(port, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
}

std::shared_ptr<DaemonSnapshot> SnapshotOfAJob() {
  auto snapshot = std::make_shared<DaemonSnapshot>();
  JobSnapshot job;
  job.name = "a \"quoted\"\njob";
  job.current_step = 42;
  job.grad_norm = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {0.005, 0.01, 0.02, 2.0, 5000.0}) job.step_times.Note(seconds);
  snapshot->jobs.push_back(job);
  return snapshot;
}

class MetricsServerTest : public testing::Test {
 protected:
  MetricsServerTest() {
    StatusOr<std::unique_ptr<MetricsServer>> server =
        MetricsServer::Start("127.0.0.1:0", [this] { return snapshot_; });
    EXPECT_TRUE(server.ok()) << ToString(server.status());
    if (server.ok()) server_ = *std::move(server);
  }

  bool Has(const std::string& line) const {
    return Scrape(server_->port()).find(line + "\n") != std::string::npos;
  }

  std::shared_ptr<const DaemonSnapshot> snapshot_ = SnapshotOfAJob();
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ShowsTheSnapshotWithEscapedLabels) {
  EXPECT_TRUE(Scrape(server_->port()).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(Has("# TYPE luwu_job_step gauge"));
  EXPECT_TRUE(Has("luwu_job_step{job_name=\"a \\\"quoted\\\"\\njob\"} 42"));
  EXPECT_TRUE(Has("# TYPE luwu_job_steps_total counter"));
  EXPECT_FALSE(Has("# TYPE luwu_storage_full gauge"));  // no data directory
}

TEST_F(MetricsServerTest, BucketsAddUpAndABoundBelongsToItsBucket) {
  const std::string page = Scrape(server_->port());
  const std::string labels = "job_name=\"a \\\"quoted\\\"\\njob\"";
  const auto has = [&](const std::string& name, const std::string& more, const std::string& value) {
    const std::string line =
        "luwu_job_step_duration_seconds" + name + "{" + labels + more + "} " + value + "\n";
    return page.find(line) != std::string::npos;
  };
  EXPECT_TRUE(has("_bucket", ",le=\"0.01\"", "2")) << page;
  EXPECT_TRUE(has("_bucket", ",le=\"0.03\"", "3"));
  EXPECT_TRUE(has("_bucket", ",le=\"1\"", "3"));
  EXPECT_TRUE(has("_bucket", ",le=\"3\"", "4"));
  EXPECT_TRUE(has("_bucket", ",le=\"1200\"", "4"));
  EXPECT_TRUE(has("_bucket", ",le=\"+Inf\"", "5"));
  EXPECT_TRUE(has("_count", "", "5"));
  EXPECT_TRUE(has("_sum", "", "5002.035"));
}

TEST_F(MetricsServerTest, SurvivesWhatIsNoScrape) {
  const std::string long_path(20000, 'x');
  for (const std::string& request :
       {std::string("\0\xff\x16\x03\x01", 5), std::string("GET"), std::string("\r\n\r\n\r\n"),
        "GET /" + long_path + " HTTP/1.1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nA: " + long_path + "\r\n\r\n",
        std::string("POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n")}) {
    const UniqueFd fd = Connect(server_->port());
    (void)!::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  }
  EXPECT_EQ(Ask(server_->port(), "GET /../../etc/passwd HTTP/1.0\r\n\r\n").find("root:"),
            std::string::npos);
  EXPECT_TRUE(Has("luwu_update_threads 0"));
}

TEST_F(MetricsServerTest, ShowsNothingBeforeThereIsASnapshot) {
  snapshot_ = nullptr;
  const std::string page = Scrape(server_->port());
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200"));
  EXPECT_EQ(page.find("luwu_"), std::string::npos);
}

TEST_F(MetricsServerTest, AnAddressInUseIsAnErrorThatNamesIt) {
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  const auto second = MetricsServer::Start(address, [] { return nullptr; });
  ASSERT_FALSE(second.ok());
  EXPECT_NE(MessageOf(second.status()).find(address), std::string::npos);
}

TEST_F(MetricsServerTest, EndsWhileAClientSaysNothing) {
  const UniqueFd silent = Connect(server_->port());
  const UniqueFd half = Connect(server_->port());
  ASSERT_EQ(::send(half.get(), "GET /met", 8, MSG_NOSIGNAL), 8);
  server_.reset();  // or the test times out
}

}  // namespace
}  // namespace luwu
