#include "common/base/numa.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace luwu {
namespace {

using Numbers = std::vector<uint32_t>;

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_EQ(*ParseCpuList(""), Numbers{});
  EXPECT_EQ(*ParseCpuList("5"), Numbers{5});
  EXPECT_EQ(*ParseCpuList("0-3,8,10-11"), (Numbers{0, 1, 2, 3, 8, 10, 11}));
  for (const char* text : {",", "1,", "-1", "1-", "3-2", "a", "1 2", "1,,2", "0-4294967295",
                           "99999999999", "0x1", "0-1024"}) {
    const auto list = ParseCpuList(text);
    EXPECT_EQ(CodeOf(list.status()), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(list.status()).find(text), std::string::npos);
  }
}

// A folder like /sys/devices/system/node.
class NumaNodes : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  const std::string root_ = testing::TempDir() + "/luwu-numa";
};

TEST_F(NumaNodes, AreThoseWithMemoryAndAllowedCpus) {
  Write("has_memory", "0-1,3-4");  // 2: CPUs only
  Write("node0/cpulist", "0-1,8-9");
  Write("node1/cpulist", "2-3,10-11");
  Write("node2/cpulist", "4-5");
  Write("node3/cpulist", "");  // memory only
  Write("node4/cpulist", "6-7");
  const Numbers allowed = {0, 1, 2, 3, 4, 9, 11};
  const StatusOr<std::vector<NumaNode>> nodes = ReadNumaNodes(root_, allowed);
  ASSERT_TRUE(nodes.ok()) << ToString(nodes.status());
  EXPECT_EQ(*nodes, (std::vector<NumaNode>{{0, {0, 1, 9}}, {1, {2, 3, 11}}}));
}

TEST_F(NumaNodes, AKernelWithoutNumaHasNone) {
  const auto nodes = ReadNumaNodes(root_ + "/not-there", Numbers{0, 1});
  ASSERT_TRUE(nodes.ok());
  EXPECT_TRUE(nodes->empty());
}

TEST_F(NumaNodes, WhatCannotBeUnderstoodIsAnErrorThatNamesTheFile) {
  EXPECT_NE(MessageOf(ReadNumaNodes(root_, Numbers{0}).status()).find("/has_memory"),
            std::string::npos);
  Write("has_memory", "0-1");
  Write("node0/cpulist", "0");
  EXPECT_NE(MessageOf(ReadNumaNodes(root_, Numbers{0}).status()).find("/node1/cpulist"),
            std::string::npos);
  Write("node1/cpulist", "one");
  const Status status = ReadNumaNodes(root_, Numbers{0}).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::kInternal);
  EXPECT_NE(MessageOf(status).find("\"one\""), std::string::npos) << ToString(status);
}

TEST_F(NumaNodes, ThisHostIsUnderstood) {
  const auto nodes = ReadNumaNodes(kNumaRoot, AllowedCpus());
  ASSERT_TRUE(nodes.ok()) << ToString(nodes.status());
  for (const NumaNode& node : *nodes) EXPECT_FALSE(node.cpus.empty());
}

TEST(StayOn, HoldsForTheScopeAndIsUndone) {
  const Numbers before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  {
    const StayOnScope stay(Numbers{before.back()});
    EXPECT_EQ(AllowedCpus(), Numbers{before.back()});
  }
  EXPECT_EQ(AllowedCpus(), before);
  EXPECT_FALSE(StayOn({}));
  EXPECT_FALSE(StayOn(Numbers{1023}));  // hardly there
  EXPECT_EQ(AllowedCpus(), before);
}

}  // namespace
}  // namespace luwu
