// The page for operators and the code name the same findings, in the same words.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include <fmt/format.h>

#include "common/doctor/finding.h"

namespace luwu::doctor {
namespace {

TEST(Catalogue, IsWhatThePageSaysRowByRow) {
  std::ifstream page(LUWU_DOCTOR_PAGE);
  ASSERT_TRUE(page.is_open());
  std::vector<std::string> on_page;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| `")) on_page.push_back(line);
  }
  std::vector<std::string> in_code;
  for (const TopicInfo& topic : Catalogue()) {
    in_code.push_back(
        fmt::format("| `{}` | {} | {} | {} |", topic.name, topic.worst, topic.meaning, topic.fix));
  }
  EXPECT_EQ(on_page, in_code);
}

TEST(Catalogue, EveryTopicHasANameOfItsOwnAndAFix) {
  std::set<std::string_view> names;
  for (const TopicInfo& topic : Catalogue()) {
    EXPECT_TRUE(names.insert(topic.name).second) << topic.name;
    EXPECT_FALSE(topic.fix.empty()) << topic.name;
    EXPECT_TRUE(topic.worst == "WARN" || topic.worst == "ERR") << topic.name;
  }
  EXPECT_EQ(NameOf(Topic::kMemlock), "MEMLOCK");
  EXPECT_EQ(NameOf(Topic::kOpenFiles), "OPEN_FILES");
  EXPECT_EQ(NameOf(Topic::kShmSocket), "SHM_SOCKET");
  EXPECT_EQ(NameOf(Topic::kStorageWrites), "STORAGE_WRITES");
  EXPECT_EQ(NameOf(Topic::kNodeList), "NODE_LIST");
  EXPECT_EQ(NameOf(Topic::kPeerData), "PEER_DATA");
}

}  // namespace
}  // namespace luwu::doctor
