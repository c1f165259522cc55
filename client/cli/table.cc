#include "client/cli/table.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/format.h>

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace luwu::cli {
namespace {

bool StartsCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

void Append(std::string* line, const std::string& cell, size_t width, bool right) {
  const std::string padding(width - std::min(width, Columns(cell)), ' ');
  *line += right ? padding + cell : cell + padding;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i < out.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(out[i]);
    if (c < 0x20 || c == 0x7f) out[i] = '?';
    // C1 controls in UTF-8: C2 80 .. C2 9F.
    if (c == 0xC2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xA0) {
      out.replace(i, 2, "?");
    }
  }
  return out;
}

size_t Columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), StartsCodePoint));
}

std::string_view CutToColumns(std::string_view text, size_t columns) {
  size_t seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (StartsCodePoint(text[i]) && ++seen > columns) return text.substr(0, i);
  }
  return text;
}

Table::Table(const std::vector<std::string>& titles) {
  for (const std::string& title : titles) {
    right_.push_back(title.starts_with('>'));
    titles_.push_back(title.substr(right_.back() ? 1 : 0));
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  LUWU_CHECK(!cells.empty() && cells.size() <= titles_.size(), "row does not fit the table");
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths;
  for (const std::string& title : titles_) widths.push_back(Columns(title));
  for (const auto& row : rows_) {
    const size_t counted = row.size() < titles_.size() ? row.size() - 1 : row.size();
    for (size_t i = 0; i < counted; ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  std::string out;
  const auto emit = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool runs_on = i + 1 == cells.size() && cells.size() < titles_.size();
      Append(&line, cells[i], runs_on ? 0 : widths[i], right_[i] && !runs_on);
      if (i + 1 < cells.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  emit(titles_);
  for (const auto& row : rows_) emit(row);
  return out;
}

std::string ShortBytes(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / kKiB;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= kKiB;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string ShortCount(uint64_t count) {
  if (count < 10'000) return fmt::format("{}", count);
  constexpr std::array kUnits = {"k", "M", "G", "T", "P", "E"};
  double value = static_cast<double>(count) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string ShortDuration(uint64_t time_ms) {
  if (time_ms < 10'000) return fmt::format("{:.1f} s", static_cast<double>(time_ms) / 1000);
  const uint64_t s = time_ms / 1000;
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
}

std::string UtcTime(int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm utc = {};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> text = {};
  return {text.data(), std::strftime(text.data(), text.size(), "%F %TZ", &utc)};
}

}  // namespace luwu::cli
