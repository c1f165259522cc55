#include "client/cli/table.h"

#include <gtest/gtest.h>

namespace luwu::cli {
namespace {

TEST(Table, AlignsColumnsToTheWidestCell) {
  Table table({"NAME", ">SIZE", "STATE"});
  table.AddRow({"a", "1", "ok"});
  table.AddRow({"longer", "12345", "x"});
  EXPECT_EQ(table.Render(),
            "NAME     SIZE  STATE\n"
            "a           1  ok\n"
            "longer  12345  x\n");
}

TEST(Table, ShortRowRunsOnWithoutWideningColumns) {
  Table table({"NAME", "STATE", ">SIZE"});
  table.AddRow({"a", "up", "1"});
  table.AddRow({"b", "a very long reason"});
  EXPECT_EQ(table.Render(),
            "NAME  STATE  SIZE\n"
            "a     up        1\n"
            "b     a very long reason\n");
}

TEST(Table, CountsCodePointsAsColumns) {
  Table table({"N", "X"});
  table.AddRow({"\xC3\xA9\xC3\xA9", "1"});  // two letters in four bytes
  table.AddRow({"ab", "2"});
  EXPECT_EQ(table.Render(), "N   X\n\xC3\xA9\xC3\xA9  1\nab  2\n");
}

TEST(Table, TextFromElsewhereCannotMoveTheCursor) {
  EXPECT_EQ(Printable("a\033[2Jb\nc\x7f"), "a?[2Jb?c?");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "?31m");  // CSI as one code point
  EXPECT_EQ(Printable("\xC3\xA9"), "\xC3\xA9");
}

TEST(Table, CutsBetweenCodePoints) {
  EXPECT_EQ(CutToColumns("abc", 2), "ab");
  EXPECT_EQ(CutToColumns("\xC3\xA9\xC3\xA9", 1), "\xC3\xA9");
  EXPECT_EQ(CutToColumns("abc", 3), "abc");
  EXPECT_EQ(CutToColumns("", 3), "");
}

TEST(ShortForms, Bytes) {
  EXPECT_EQ(ShortBytes(0), "0 B");
  EXPECT_EQ(ShortBytes(1023), "1023 B");
  EXPECT_EQ(ShortBytes(1024), "1.0 KiB");
  EXPECT_EQ(ShortBytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(ShortBytes(uint64_t{5} << 29), "2.5 GiB");
  EXPECT_EQ(ShortBytes(UINT64_MAX), "16.0 EiB");
}

TEST(ShortForms, Counts) {
  EXPECT_EQ(ShortCount(9999), "9999");
  EXPECT_EQ(ShortCount(10'000), "10.0 k");
  EXPECT_EQ(ShortCount(999'999), "1.0 M");
  EXPECT_EQ(ShortCount(123'456'789), "123.5 M");
}

TEST(ShortForms, Durations) {
  EXPECT_EQ(ShortDuration(450), "0.5 s");
  EXPECT_EQ(ShortDuration(59'000), "59 s");
  EXPECT_EQ(ShortDuration(200'000), "3 min 20 s");
  EXPECT_EQ(ShortDuration(7'500'000), "2 h 5 min");
  EXPECT_EQ(ShortDuration(uint64_t{90} * 3600 * 1000), "3 d 18 h");
}

TEST(ShortForms, TimesAreUtc) {
  EXPECT_EQ(UtcTime(0), "1970-01-01 00:00:00Z");
  EXPECT_EQ(UtcTime(1769903999), "2026-01-31 23:59:59Z");
}

}  // namespace
}  // namespace luwu::cli
