#include "common/config/config_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include <toml++/toml.h>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "common/config/quantity.h"

namespace luwu {
namespace {

constexpr size_t kErrorsMax = 20;  // further ones are counted only
constexpr size_t kFileBytesMax = kMiB;

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view TypeName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return node.is_array_of_tables() ? "an array of tables" : "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a floating-point number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

}  // namespace

struct ConfigReader::TableState {
  const toml::table* table = nullptr;        // null: not in the text
  std::string path;                          // "memory", "node[2]"; empty for the root
  int line = 0;                              // of the nearest table that is in the text
  std::set<std::string, std::less<>> known;  // keys asked for
  std::map<std::string, std::vector<TableState*>, std::less<>> children;
};

struct ConfigReader::Document {
  struct Problem {
    int line;
    std::string text;
    bool operator<(const Problem& other) const { return line < other.line; }
  };

  std::string source_name;
  toml::table root;
  std::vector<std::unique_ptr<TableState>> tables;
  std::vector<Problem> problems;

  TableState* NewTable(const toml::table* table, std::string path, int line) {
    auto state = std::make_unique<TableState>();
    state->table = table;
    state->path = std::move(path);
    state->line = table != nullptr ? static_cast<int>(table->source().begin.line) : line;
    tables.push_back(std::move(state));
    return tables.back().get();
  }

  std::string At(int line) const {
    return line > 0 ? fmt::format("{}:{}", source_name, line) : source_name;
  }

  void Add(int line, const std::string& path, const std::string& message) {
    problems.push_back({line, fmt::format("{}: key '{}': {}", At(line), path, message)});
  }

  // The node at `key`, or null after noting a missing required one. Marks the key as known.
  const toml::node* Find(TableState* table, std::string_view key, bool required) {
    table->known.emplace(key);
    const toml::node* node = table->table == nullptr ? nullptr : table->table->get(key);
    if (node == nullptr && required) {
      Add(table->line, Join(table->path, key), "is missing and has no default; add it");
    }
    return node;
  }

  void AddWrongType(const TableState& table, std::string_view key, const toml::node& node,
                    std::string_view wanted) {
    Add(static_cast<int>(node.source().begin.line), Join(table.path, key),
        fmt::format("is {}; write {}", TypeName(node), wanted));
  }

  std::vector<Problem> UnknownKeys() const {
    std::vector<Problem> out;
    for (const auto& state : tables) {
      if (state->table == nullptr) continue;
      for (const auto& [key, node] : *state->table) {
        if (state->known.contains(key.str())) continue;
        // An implicit table ([a.b] without [a]) has no line of its own.
        const int line =
            static_cast<int>(std::max(key.source().begin.line, node.source().begin.line));
        out.push_back({line, fmt::format("{}: key '{}': {}", At(line), Join(state->path, key.str()),
                                         UnknownKeyHint(*state, key.str()))});
      }
    }
    return out;
  }

  static std::string UnknownKeyHint(const TableState& table, std::string_view key) {
    const std::string* nearest = nullptr;
    size_t nearest_distance = std::max<size_t>(2, key.size() / 3);
    for (const std::string& known : table.known) {
      const size_t distance = EditDistance(key, known);
      if (distance > nearest_distance || (nearest != nullptr && distance == nearest_distance)) {
        continue;
      }
      nearest = &known;
      nearest_distance = distance;
    }
    if (nearest != nullptr) return fmt::format("unknown key; did you mean '{}'?", *nearest);
    if (table.known.empty()) return "unknown key; remove it";
    return fmt::format("unknown key; known here are {}", fmt::join(table.known, ", "));
  }
};

StatusOr<ConfigReader> ConfigReader::Parse(std::string_view text, const std::string& source_name) {
  auto document = std::make_shared<Document>();
  document->source_name = source_name;
  try {
    document->root = toml::parse(text, source_name);
  } catch (const toml::parse_error& error) {
    const std::string_view why = error.description();
    return luwu::Error(ErrorCode::kInvalidArgument, "{}: not valid TOML: {}",
                       document->At(static_cast<int>(error.source().begin.line)), why);
  }
  TableState* root = document->NewTable(&document->root, "", 0);
  root->line = 0;  // the root has no heading
  return ConfigReader(std::move(document), root);
}

StatusOr<ConfigReader> ConfigReader::ReadFile(const std::string& path) {
  const auto failed = [&path] {
    const int error = errno;
    return luwu::Error(error == EACCES ? ErrorCode::kPermission : ErrorCode::kNotFound,
                       "{}: cannot be read: {}", path, std::strerror(error));
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failed();
  std::string text;
  std::array<char, 16384> piece;
  while (true) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed();
    if (got == 0) return Parse(text, path);
    text.append(piece.data(), static_cast<size_t>(got));
    if (text.size() > kFileBytesMax) {
      return luwu::Error(ErrorCode::kInvalidArgument,
                         "{}: is longer than {}; this is not a configuration file", path,
                         HumanBytes(kFileBytesMax));
    }
  }
}

uint64_t ConfigReader::GetNumber(std::string_view key, U64Range range,
                                 std::optional<uint64_t> preset, const Notation& notation) {
  const uint64_t fallback = preset.value_or(range.min);
  const toml::node* node = document_->Find(table_, key, !preset.has_value());
  if (node == nullptr) return fallback;
  const auto show = [&](uint64_t value) {
    return notation.show == nullptr ? fmt::format("{}", value) : notation.show(value);
  };
  const auto out_of_range = [&](const std::string& value) {
    AddError(key,
             range.max == U64Range().max
                 ? fmt::format("is {}; choose at least {}", value, show(range.min))
                 : fmt::format("is {}; choose {} to {}", value, show(range.min), show(range.max)));
    return fallback;
  };
  uint64_t value = 0;
  if (const auto* integer = node->as_integer()) {
    if (integer->get() < 0) return out_of_range(fmt::format("{}", integer->get()));
    value = static_cast<uint64_t>(integer->get());
  } else if (const auto* text = node->as_string(); text != nullptr && notation.parse != nullptr) {
    const StatusOr<uint64_t> parsed = notation.parse(text->get());
    if (!parsed.ok()) {
      AddError(key, MessageOf(parsed.status()));
      return fallback;
    }
    value = *parsed;
  } else {
    document_->AddWrongType(*table_, key, *node, notation.wanted);
    return fallback;
  }
  if (value < range.min || value > range.max) return out_of_range(show(value));
  return value;
}

uint64_t ConfigReader::GetU64(std::string_view key, U64Range range,
                              std::optional<uint64_t> preset) {
  return GetNumber(key, range, preset, {.wanted = "an integer"});
}

std::vector<uint64_t> ConfigReader::GetU64List(std::string_view key, U64Range range) {
  std::vector<uint64_t> out;
  const toml::node* node = document_->Find(table_, key, false);
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    document_->AddWrongType(*table_, key, *node, "integers in brackets, such as [1, 2]");
    return out;
  }
  for (const toml::node& element : *array) {
    const auto* integer = element.as_integer();
    if (integer == nullptr) {
      document_->AddWrongType(*table_, key, element, "integers only in these brackets");
      return out;
    }
    const int64_t value = integer->get();
    if (value < 0 || static_cast<uint64_t>(value) < range.min ||
        static_cast<uint64_t>(value) > range.max) {
      AddError(key, fmt::format("has {}; choose {} to {}", value, range.min, range.max));
      return out;
    }
    out.push_back(static_cast<uint64_t>(value));
  }
  return out;
}

std::vector<std::string> ConfigReader::GetStringList(std::string_view key) {
  std::vector<std::string> out;
  const toml::node* node = document_->Find(table_, key, false);
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    document_->AddWrongType(*table_, key, *node, "texts in brackets, such as [\"a\", \"b\"]");
    return out;
  }
  for (const toml::node& element : *array) {
    const auto* text = element.as_string();
    if (text == nullptr) {
      document_->AddWrongType(*table_, key, element, "texts only in these brackets");
      return out;
    }
    if (text->get().empty()) {
      AddError(key, "has an empty text");
      return out;
    }
    out.push_back(text->get());
  }
  return out;
}

uint64_t ConfigReader::GetBytes(std::string_view key, U64Range range,
                                std::optional<uint64_t> preset) {
  return GetNumber(key, range, preset,
                   {.wanted = "bytes as an integer or a size such as \"4GiB\"",
                    .parse = ParseBytes,
                    .show = HumanBytes});
}

uint64_t ConfigReader::GetDurationMs(std::string_view key, U64Range range,
                                     std::optional<uint64_t> preset) {
  return GetNumber(key, range, preset,
                   {.wanted = "milliseconds as an integer or a duration such as \"15s\"",
                    .parse = ParseDurationMs,
                    .show = [](uint64_t value) { return fmt::format("{} ms", value); }});
}

std::string ConfigReader::GetString(std::string_view key, std::optional<std::string> preset) {
  const toml::node* node = document_->Find(table_, key, !preset.has_value());
  const bool may_be_empty = preset.has_value() && preset->empty();
  std::string fallback = std::move(preset).value_or("");
  if (node == nullptr) return fallback;
  const auto* text = node->as_string();
  if (text == nullptr) {
    document_->AddWrongType(*table_, key, *node, "a string in quotes");
    return fallback;
  }
  if (text->get().empty() && !may_be_empty) {
    AddError(key, "is empty; write a text");
    return fallback;
  }
  return text->get();
}

std::string ConfigReader::GetChoice(std::string_view key, const std::vector<std::string>& choices,
                                    std::optional<std::string> preset) {
  LUWU_CHECK(!choices.empty(), "a choice needs choices");
  const std::string fallback = preset.value_or(choices.front());
  const size_t problems_before = document_->problems.size();
  std::string value = GetString(key, std::move(preset));
  if (document_->problems.size() != problems_before) return fallback;
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  AddError(key, fmt::format("is \"{}\"; choose \"{}\"", value, fmt::join(choices, "\", \"")));
  return fallback;
}

bool ConfigReader::GetBool(std::string_view key, std::optional<bool> preset) {
  const toml::node* node = document_->Find(table_, key, !preset.has_value());
  if (node == nullptr) return preset.value_or(false);
  if (const auto* value = node->as_boolean()) return value->get();
  document_->AddWrongType(*table_, key, *node, "true or false, without quotes");
  return preset.value_or(false);
}

bool ConfigReader::Has(std::string_view key) const {
  return table_->table != nullptr && table_->table->contains(key);
}

ConfigReader ConfigReader::Table(std::string_view key) {
  const toml::node* node = document_->Find(table_, key, false);
  std::vector<TableState*>& children = table_->children[std::string(key)];
  if (children.empty()) {
    const toml::table* table = node == nullptr ? nullptr : node->as_table();
    if (node != nullptr && table == nullptr) {
      document_->AddWrongType(*table_, key, *node, fmt::format("a table, [{}]", key));
    }
    children.push_back(document_->NewTable(table, Join(table_->path, key), table_->line));
  }
  return ConfigReader(document_, children.front());
}

std::vector<ConfigReader> ConfigReader::Tables(std::string_view key) {
  const toml::node* node = document_->Find(table_, key, false);
  std::vector<ConfigReader> out;
  if (node == nullptr) return out;
  const toml::array* array = node->as_array();
  if (array == nullptr || (!array->empty() && !array->is_array_of_tables())) {
    document_->AddWrongType(*table_, key, *node, fmt::format("tables, each under [[{}]]", key));
    return out;
  }
  std::vector<TableState*>& children = table_->children[std::string(key)];
  for (size_t i = 0; i < array->size(); ++i) {
    if (i == children.size()) {
      children.push_back(document_->NewTable(array->get_as<toml::table>(i),
                                             fmt::format("{}[{}]", Join(table_->path, key), i), 0));
    }
    out.push_back(ConfigReader(document_, children[i]));
  }
  return out;
}

void ConfigReader::AddError(std::string_view key, const std::string& message) {
  const toml::node* node = table_->table == nullptr ? nullptr : table_->table->get(key);
  const int line = node == nullptr ? table_->line : static_cast<int>(node->source().begin.line);
  document_->Add(line, Join(table_->path, key), message);
}

Status ConfigReader::Finish() const {
  std::vector<Document::Problem> problems = document_->problems;
  for (Document::Problem& problem : document_->UnknownKeys()) {
    problems.push_back(std::move(problem));
  }
  if (problems.empty()) return OkStatus();
  std::stable_sort(problems.begin(), problems.end());
  std::string text;
  for (size_t i = 0; i < problems.size() && i < kErrorsMax; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : "\n", problems[i].text);
  }
  if (problems.size() > kErrorsMax) {
    text += fmt::format("\nand {} more", problems.size() - kErrorsMax);
  }
  return MakeError(ErrorCode::kInvalidArgument, text);
}

}  // namespace luwu
