#include "server/interchange/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace luwu::interchange {
namespace {

using testing::HasSubstr;

TEST(SafetensorsIndex, AnIndexOfHuggingFaceIsRead) {
  const auto index = ParseSafetensorsIndex(R"({
      "metadata": {"total_size": 1234, "total_parameters": 3, "list": [1, {"a": null}]},
      "weight_map": {"b": "model-00002-of-00002.safetensors",
                     "a": "model-00001-of-00002.safetensors",
                     "c": "model-00001-of-00002.safetensors"}})",
                                           "i");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->files, (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                    "model-00002-of-00002.safetensors"}));
  EXPECT_EQ(index->tensors, (std::map<std::string, uint32_t>{{"a", 0}, {"b", 1}, {"c", 0}}));
}

struct Hostile {
  std::string json;
  const char* says;
};

TEST(SafetensorsIndex, HostileIndexesAreRefusedWithTheReason) {
  const Hostile all[] = {
      {"", "not JSON"},
      {"[]", "an array, not an object"},
      {"3", "a number, not an object"},
      {"{}", "no weight_map"},
      {R"({"weight_map":3})", "weight_map is a number"},
      {R"({"weight_map":[]})", "weight_map is an array"},
      {R"({"weight_map":{"a":3}})", "has a number at 'a'"},
      {R"({"weight_map":{"a":{"b":"c"}}})", "has an object at 'a'"},
      {R"({"weight_map":{"a":["b"]}})", "has an array at 'a'"},
      {R"({"weight_map":{"a":"f","a":"g"}})", "'a' is there twice"},
      {R"({"weight_map":{},"weight_map":{}})", "weight_map is there twice"},
      {R"({"weight_map":{"a":"../f"}})", "same folder"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "same folder"},
      {R"({"weight_map":{"a":"x/y"}})", "same folder"},
      {R"({"weight_map":{"a":".."}})", "same folder"},
      {R"({"weight_map":{"a":"."}})", "same folder"},
      {R"({"weight_map":{"a":""}})", "same folder"},
      {R"({"weight_map":{"a":"f\u0000g"}})", "same folder"},
      {R"({"weight_map":{}} x)", "not JSON"},
      {std::string(R"({"weight_map":{}})") + '\0' + "x", "not JSON"},
      {R"({"metadata":)" + std::string(100'000, '['), "levels of nesting"},
  };
  for (const Hostile& hostile : all) {
    const auto index = ParseSafetensorsIndex(hostile.json, "i.json");
    ASSERT_FALSE(index.ok()) << hostile.json;
    EXPECT_EQ(CodeOf(index.status()), ErrorCode::kCorrupt);
    EXPECT_THAT(MessageOf(index.status()), HasSubstr("'i.json'"));
    EXPECT_THAT(MessageOf(index.status()), HasSubstr(hostile.says)) << hostile.json.substr(0, 60);
  }
}

TEST(SafetensorsIndex, WhatIsWrittenIsTheFormat) {
  SafetensorsIndex index;
  index.files = {"f1", "f2"};
  index.tensors = {{"a\"", 1}, {"b", 0}};
  index.metadata = {{"luwu.export", "x\""}};
  EXPECT_EQ(EncodeSafetensorsIndex(index, 12), R"({
  "metadata": {
    "total_size": 12,
    "luwu.export": "x\""
  },
  "weight_map": {
    "a\"": "f2",
    "b": "f1"
  }
}
)");
}

TEST(SafetensorsIndex, OfTheMetadataOnlyTextsOfOursAreRead) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"luwu.step":"7","luwu.size":5,"x":"y","z":{"luwu.export":"deep"},
          "luwu.list":["luwu"]},"luwu.step":"8","weight_map":{"luwu.step":"f"}})",
      "i.json");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->metadata, (std::map<std::string, std::string>{{"luwu.step", "7"}}));
  EXPECT_EQ(index->tensors, (std::map<std::string, uint32_t>{{"luwu.step", 0}}));
  const auto twice = ParseSafetensorsIndex(
      R"({"metadata":{"luwu.step":"7","luwu.step":"8"},"weight_map":{}})", "i.json");
  EXPECT_THAT(MessageOf(twice.status()), HasSubstr("'luwu.step' is there twice"));
}

}  // namespace
}  // namespace luwu::interchange
