// The header's parser against files written by hand, most of them wrong in one way.
#include "server/interchange/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/unit/interchange/file_maker.h"

namespace luwu::interchange {
namespace {

using testing::HasSubstr;

StatusOr<SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return ParseSafetensorsHeader(json, 8 + json.size() + data_bytes, "f.safetensors");
}

TEST(SafetensorsHeader, AFileOfTwoTensorsIsReadAsItIs) {
  const std::string json = R"({"__metadata__":{"format":"pt","a":""},)"
                           R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                           R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  const StatusOr<SafetensorsHeader> header = Parse(json, 16);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_offset, 8 + json.size());
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"a", ""}}));
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[0].elements(), 1u);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].dtype, FileDType::kBF16);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].begin, 4u);
  EXPECT_EQ(header->tensors[1].end, 16u);
}

TEST(SafetensorsHeader, EmptyTensorsAndEmptyFilesAreAllowed) {
  EXPECT_TRUE(Parse("{}", 0).ok());
  const auto header = Parse(R"({"z":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                            R"("a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                            R"("e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                            4);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), 3u);
}

TEST(SafetensorsHeader, EveryDTypeOfTheFormatIsKnownWithItsSize) {
  const std::pair<const char*, uint64_t> known[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8},
  };
  for (const auto& [name, bytes] : known) {
    const auto header = Parse(fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],)"
                                          R"("data_offsets":[0,{}]}}}})",
                                          name, 3 * bytes),
                              3 * bytes);
    ASSERT_TRUE(header.ok()) << name << header.status();
    EXPECT_EQ(FileDTypeName(header->tensors[0].dtype), name);
    const bool usable =
        std::string(name) == "F32" || std::string(name) == "BF16" || std::string(name) == "F16";
    EXPECT_EQ(UsableDType(header->tensors[0].dtype).has_value(), usable) << name;
  }
}

struct Hostile {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  const char* says;
};

void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

class HostileHeader : public testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefusedNamingFileAndReason) {
  const auto header = Parse(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(CodeOf(header.status()), ErrorCode::kCorrupt);
  EXPECT_THAT(MessageOf(header.status()), HasSubstr("'f.safetensors'"));
  EXPECT_THAT(MessageOf(header.status()), HasSubstr(GetParam().says));
  EXPECT_LT(MessageOf(header.status()).size(), 1000u);
}

std::string One(const std::string& fields) { return R"({"w":{)" + fields + "}}"; }

INSTANTIATE_TEST_SUITE_P(
    All, HostileHeader,
    testing::Values(
        Hostile{"empty", "", 0, "begin with '{'"},
        Hostile{"spaces_first", "  {}", 0, "begin with '{'"},
        Hostile{"an_array", "[]", 0, "begin with '{'"},
        Hostile{"not_json", "{nope}", 0, "not JSON"},
        Hostile{"cut", R"({"w":{"dtype":"F32")", 0, "not JSON"},
        Hostile{"rubbish_behind", "{}x", 0, "not JSON"},
        Hostile{"zero_bytes_behind", std::string("{}\0\0", 4), 0, "not JSON"},
        Hostile{"two_objects", "{}{}", 0, "not JSON"},
        Hostile{"bad_utf8", "{\"\xff\":1}", 0, "not JSON"},
        Hostile{"deep", R"({"w":{"shape":)" + std::string(100'000, '['), 0,
                "an array in its shape"},
        Hostile{"deep_objects", R"({"w":{"dtype":{"a":1}}})", 0, "an object in its dtype"},
        Hostile{"tensor_is_number", R"({"w":3})", 0, "'w' is a number, not an object"},
        Hostile{"tensor_is_null", R"({"w":null})", 0, "'w' is null"},
        Hostile{"no_fields", R"({"w":{}})", 0, "lacks"},
        Hostile{"no_shape", One(R"("dtype":"F32","data_offsets":[0,4])"), 4, "lacks"},
        Hostile{"unknown_field", One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), 4,
                "unknown field 'x'"},
        Hostile{"field_twice",
                One(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4,
                "dtype twice"},
        Hostile{"unknown_dtype", One(R"("dtype":"F128","shape":[1],"data_offsets":[0,4])"), 4,
                "unknown dtype 'F128'"},
        Hostile{"negative_dimension", One(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4,
                "negative number in its shape"},
        Hostile{"fraction", One(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4,
                "fraction"},
        Hostile{"huge_number",
                One(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4])"), 4,
                "huge number"},
        Hostile{"text_offset", One(R"("dtype":"F32","shape":[1],"data_offsets":["0",4])"), 4,
                "a string in its data_offsets"},
        Hostile{"one_offset", One(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), 4,
                "two data_offsets"},
        Hostile{"three_offsets", One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"), 4,
                "more than two data_offsets"},
        Hostile{"backwards", One(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4,
                "ends before it begins"},
        Hostile{"out_of_file", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4,
                "ends at byte 8 of 4"},
        Hostile{"far_out",
                One(R"("dtype":"F32","shape":[1],"data_offsets":)"
                    "[18446744073709551611,18446744073709551615]"),
                4, "ends at byte"},
        Hostile{"wrong_size", One(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8,
                "takes 12 bytes, but has 8"},
        Hostile{"overflow",
                One(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
                "impossible shape"},
        Hostile{"overflow_with_zero",
                One(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0,
                "impossible shape"},
        Hostile{"twice",
                R"({"w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                R"("w":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
                2, "'w' is there twice"},
        Hostile{"overlap",
                R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}})",
                3, "'b' overlaps"},
        Hostile{"same_bytes",
                R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
                2, "'b' overlaps"},
        Hostile{"hole",
                R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                R"("b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})",
                3, "1 bytes before tensor 'b'"},
        Hostile{"hole_first", One(R"("dtype":"I8","shape":[1],"data_offsets":[1,2])"), 2,
                "1 bytes before tensor 'w'"},
        Hostile{"trailing", One(R"("dtype":"I8","shape":[1],"data_offsets":[0,1])"), 3,
                "2 bytes at the end"},
        Hostile{"trailing_without_tensors", "{}", 1, "1 bytes at the end"},
        Hostile{"metadata_number", R"({"__metadata__":{"a":1}})", 0, "only strings"},
        Hostile{"metadata_object", R"({"__metadata__":{"a":{}}})", 0, "only strings"},
        Hostile{"metadata_array", R"({"__metadata__":{"a":[]}})", 0, "only strings"},
        Hostile{"metadata_text", R"({"__metadata__":"a"})", 0, "__metadata__ is a string"},
        Hostile{"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
        Hostile{"metadata_key_twice", R"({"__metadata__":{"a":"","a":""}})", 0, "'a' twice"},
        Hostile{"many_dimensions",
                R"({"w":{"dtype":"I8","shape":[1)" +
                    [] {
                      std::string ones;
                      for (int i = 0; i < 64; ++i) ones += ",1";
                      return ones;
                    }() +
                    R"(],"data_offsets":[0,1]}})",
                1, "dimensions"},
        Hostile{"long_unprintable_name", "{\"" + std::string(5000, 'n') + "\\n\":1}", 0, "nnn..."}),
    [](const auto& info) { return std::string(info.param.name); });

StatusOr<uint64_t> Length(uint64_t value, uint64_t file_bytes) {
  std::array<std::byte, 8> bytes = {};
  std::memcpy(bytes.data(), Little64(value).data(), 8);
  return ParseHeaderLength(bytes, file_bytes, "f");
}

TEST(SafetensorsHeaderLength, FitsTheFileAndTheLimit) {
  EXPECT_EQ(*Length(2, 10), 2u);
  EXPECT_EQ(*Length(100'000'000, 200'000'000), 100'000'000u);
  EXPECT_THAT(MessageOf(Length(3, 10).status()), HasSubstr("the file has 10"));
  EXPECT_THAT(MessageOf(Length(100'000'001, ~uint64_t{0}).status()), HasSubstr("at most"));
  EXPECT_THAT(MessageOf(Length(~uint64_t{0}, 10).status()), HasSubstr("at most"));
  EXPECT_THAT(MessageOf(Length(0, 4).status()), HasSubstr("the file has 4"));
}

TEST(SafetensorsHeader, WhatIsWrittenIsTheFormat) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"q", "a\"b"}};
  header.tensors.push_back({"x.\"y\"", FileDType::kF16, {2, 1}, 0, 4});
  header.tensors.push_back({"s", FileDType::kF32, {}, 4, 8});
  std::string json = R"({"__metadata__":{"format":"pt","q":"a\"b"},)"
                     R"("x.\"y\"":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},)"
                     R"("s":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})";
  while (json.size() % 8 != 0) json += ' ';
  EXPECT_EQ(EncodeSafetensorsHeader(header), FileBytes(json, ""));
}

TEST(SafetensorsHeader, AnEntryIsNeverLongerThanItsBound) {
  SafetensorsHeader header;
  header.tensors.push_back({"a", FileDType::kBF16, {1, 2, 3}, 0, 12});
  const uint64_t one = EncodeSafetensorsHeader(header).size();
  header.tensors.push_back({"b\n", FileDType::kBF16, {1, 2, 3}, ~uint64_t{0} - 12, ~uint64_t{0}});
  EXPECT_LE(EncodeSafetensorsHeader(header).size() - one, EntryBytesMax(header.tensors[1]) + 8);
}

}  // namespace
}  // namespace luwu::interchange
