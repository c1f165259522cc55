// Aligned text tables, and the short forms of sizes and times that go into them. Text that came
// from a daemon is made printable, so that it cannot move the terminal's cursor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace luwu::cli {

class Table {
 public:
  // A title that begins with '>' makes a right-aligned column.
  explicit Table(const std::vector<std::string>& titles);

  // A row with fewer cells than columns: its last cell runs on over the rest of the line.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Titles and rows, each line ended by a newline; columns two spaces apart.
  std::string Render() const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string Printable(std::string_view text);  // control characters become '?'
size_t Columns(std::string_view text);         // width on a terminal: code points
// The first `columns` code points.
std::string_view CutToColumns(std::string_view text, size_t columns);

std::string ShortBytes(uint64_t bytes);  // "512 B", "1.5 GiB"
std::string ShortCount(uint64_t count);  // "950", "12.4 M"
// "0.4 s", "12 s", "3 min 20 s", "2 h 5 min", "4 d 3 h"
std::string ShortDuration(uint64_t time_ms);
std::string UtcTime(int64_t unix_s);  // "2026-01-31 23:59:59Z"

}  // namespace luwu::cli
