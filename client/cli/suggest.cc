#include "client/cli/suggest.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace luwu::cli {
namespace {

// Insertions, deletions and replacements that make one word of the other.
size_t EditDistance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string NearestOf(const std::string& word, const std::vector<std::string>& choices) {
  std::string nearest;
  size_t distance = std::max<size_t>(word.size() / 2, 2) + 1;
  for (const std::string& choice : choices) {
    if (const size_t found = EditDistance(word, choice); found < distance) {
      nearest = choice;
      distance = found;
    }
  }
  return nearest;
}

std::string UnknownCommand(const std::string& word, const std::vector<std::string>& choices) {
  const std::string nearest = NearestOf(word, choices);
  const std::string hint = nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
  return fmt::format("there is no command '{}'{} Commands: {}", word, hint.empty() ? "." : hint,
                     fmt::join(choices, ", "));
}

}  // namespace luwu::cli
