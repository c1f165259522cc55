#include "client/cli/place_checks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "client/cli/doctor_config.h"
#include "common/transport/socket.h"

namespace luwu::cli {
namespace {

using doctor::Finding;
using doctor::Severity;
using doctor::Topic;

constexpr uint64_t kGiB = uint64_t{1} << 30;

Finding Port(int error, std::vector<PortHolder> holders = {}) {
  return CheckPort(Topic::kDataPort, {"10.0.0.1:7071", error, "", std::move(holders)});
}

TEST(PlaceChecks, APortIsFreeOrHeldByTheDaemon) {
  EXPECT_EQ(Port(0).severity, Severity::kOk);
  EXPECT_EQ(Port(EADDRINUSE, {{42, "luwud"}}).severity, Severity::kOk);
  EXPECT_EQ(Port(0).topic, Topic::kDataPort);
}

TEST(PlaceChecks, APortThatAnotherProgramHas) {
  const Finding finding = Port(EADDRINUSE, {{42, "nginx"}});
  EXPECT_EQ(finding.severity, Severity::kErr);
  EXPECT_NE(finding.summary.find("nginx (pid 42)"), std::string::npos) << finding.summary;
  EXPECT_EQ(Port(EADDRINUSE, {{41, "luwud"}, {42, "nginx"}}).severity, Severity::kErr);
  const Finding unseen = Port(EADDRINUSE);
  EXPECT_EQ(unseen.severity, Severity::kWarn);
  EXPECT_NE(unseen.hint.find(":7071"), std::string::npos) << unseen.hint;
}

TEST(PlaceChecks, AnAddressThatCannotBeHad) {
  EXPECT_EQ(Port(EADDRNOTAVAIL).severity, Severity::kErr);
  EXPECT_EQ(Port(EACCES).severity, Severity::kErr);
  EXPECT_EQ(CheckPort(Topic::kControlPort, {"nowhere:1", 0, "Name or service not known"}).severity,
            Severity::kErr);
}

SocketFacts FreeSocket() {
  return {.path = "/run/luwu/a.sock", .folder_exists = true, .folder_writable = true};
}

TEST(PlaceChecks, ShmSocket) {
  EXPECT_EQ(CheckShmSocket(FreeSocket()).severity, Severity::kOk);
  SocketFacts facts = FreeSocket();
  facts.exists = facts.is_socket = true;  // left over
  EXPECT_EQ(CheckShmSocket(facts).severity, Severity::kOk);
  facts.folder_writable = false;
  EXPECT_EQ(CheckShmSocket(facts).severity, Severity::kErr);
  facts.answers = true;  // its daemon runs, as another user
  EXPECT_EQ(CheckShmSocket(facts).severity, Severity::kOk);
  facts = FreeSocket();
  facts.exists = true;  // a plain file
  EXPECT_EQ(CheckShmSocket(facts).severity, Severity::kErr);
  facts = FreeSocket();
  facts.folder_exists = facts.folder_writable = false;
  EXPECT_EQ(CheckShmSocket(facts).severity, Severity::kErr);
}

DirectoryFacts GoodDirectory() {
  return {.path = "/data/luwu",
          .exists = true,
          .is_directory = true,
          .nearest = "/data/luwu",
          .writable = true,
          .file_system = "",
          .free_bytes = 100 * kGiB,
          .budget_bytes = 100 * kGiB};
}

TEST(PlaceChecks, DataDirectory) {
  EXPECT_EQ(CheckDirectory(GoodDirectory()).severity, Severity::kOk);
  DirectoryFacts facts = GoodDirectory();
  facts.exists = facts.is_directory = false;
  facts.nearest = "/data";
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kOk);
  facts.writable = false;
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kErr);
  facts = GoodDirectory();
  facts.is_directory = false;
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kErr);
  for (const char* file_system : {"tmpfs", "nfs", "overlay"}) {
    facts = GoodDirectory();
    facts.file_system = file_system;
    EXPECT_EQ(CheckDirectory(facts).severity, Severity::kWarn) << file_system;
  }
}

TEST(PlaceChecks, SpaceForTheBudgetOfADirectoryThatIsNotUsedYet) {
  DirectoryFacts facts = GoodDirectory();
  facts.free_bytes -= 1;
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kWarn);
  facts.used = true;  // the daemon knows how much of the budget is there already
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kOk);
  facts.free_bytes = kGiB - 1;
  EXPECT_EQ(CheckDirectory(facts).severity, Severity::kWarn);
}

TEST(PlaceFacts, AListeningPortNamesItsProcess) {
  const auto listener = transport::ListenTcp("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const PortFacts taken = LookAtPort(fmt::format("127.0.0.1:{}", listener->port));
  EXPECT_EQ(taken.error, EADDRINUSE);
  ASSERT_EQ(taken.holders.size(), 1U);
  EXPECT_EQ(taken.holders[0].pid, ::getpid());
  EXPECT_EQ(LookAtPort("127.0.0.1:0").error, 0);
  EXPECT_EQ(LookAtPort("192.0.2.1:7070").error, EADDRNOTAVAIL);
  EXPECT_FALSE(LookAtPort("no-colon").unknown.empty());
}

class PlaceFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/luwu-place-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(PlaceFilesTest, DirectoriesAndTheirNearest) {
  const DirectoryFacts missing = LookAtDirectory(folder_ / "a" / "b", 7);
  EXPECT_FALSE(missing.exists);
  EXPECT_EQ(missing.nearest, folder_);
  EXPECT_TRUE(missing.writable);
  EXPECT_GT(missing.free_bytes, 0U);
  EXPECT_EQ(missing.budget_bytes, 7U);
  EXPECT_FALSE(LookAtDirectory(folder_, 0).used);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_TRUE(LookAtDirectory(folder_, 0).used);
  EXPECT_FALSE(LookAtDirectory(folder_ / "file", 0).is_directory);
}

TEST_F(PlaceFilesTest, Sockets) {
  const std::string path = folder_ / "a.sock";
  EXPECT_FALSE(LookAtSocket(path).exists);
  {
    const auto listener = transport::ListenUnix(path);
    ASSERT_TRUE(listener.ok());
    EXPECT_TRUE(LookAtSocket(path).answers);
  }
  const SocketFacts left_over = LookAtSocket(path);
  EXPECT_TRUE(left_over.is_socket);
  EXPECT_FALSE(left_over.answers);
  EXPECT_FALSE(LookAtSocket(folder_ / "none" / "a.sock").folder_exists);
}

TEST_F(PlaceFilesTest, TheConfigurationOfADaemon) {
  const std::string path = folder_ / "luwud.toml";
  std::ofstream(path) << R"(
[node]
name = "b"
[memory]
budget = "2GiB"
[storage]
path = "/data"
budget = "1TiB"
[rdma]
use = "on"
device = "mlx5_1"
gid_index = 3
[[nodes]]
name = "a"
control = "10.0.0.1:7070"
[[nodes]]
name = "b"
control = "10.0.0.2:7070"
data = "10.0.0.2:7071"
shm = "/run/b.sock"
)";
  const StatusOr<DoctorConfig> config = ReadDoctorConfig(path);
  ASSERT_TRUE(config.ok()) << ToString(config.status());
  EXPECT_EQ(config->node, "b");
  EXPECT_EQ(config->control_address, "10.0.0.2:7070");
  EXPECT_EQ(config->data_address, "10.0.0.2:7071");
  EXPECT_EQ(config->shm_path, "/run/b.sock");
  EXPECT_EQ(config->storage_path, "/data");
  EXPECT_EQ(config->storage_budget_bytes, uint64_t{1} << 40);
  EXPECT_EQ(config->memory_budget_bytes, 2 * kGiB);
  EXPECT_EQ(config->rdma.use, transport::VerbsUse::kOn);
  EXPECT_EQ(config->rdma.device, "mlx5_1");
  EXPECT_EQ(config->rdma.gid_index, 3);
}

TEST_F(PlaceFilesTest, AConfigurationThatCannotBeUsed) {
  EXPECT_EQ(CodeOf(ReadDoctorConfig(folder_ / "none").status()), ErrorCode::kNotFound);
  const std::string path = folder_ / "luwud.toml";
  std::ofstream(path) << "[node]\nname = \"c\"\n[[nodes]]\nname = \"a\"\n";
  EXPECT_NE(MessageOf(ReadDoctorConfig(path).status()).find("'c'"), std::string::npos);
  std::ofstream(path) << "[node\n";
  EXPECT_EQ(CodeOf(ReadDoctorConfig(path).status()), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace luwu::cli
