// Strict, typed reader of a TOML configuration. The owner of a schema asks for each key once with
// its type, range and default, then calls Finish(), which refuses every key that nobody asked for.
//
//   ASSIGN_OR_RETURN(ConfigReader root, ConfigReader::ReadFile(path));
//   ConfigReader memory = root.Table("memory");
//   config.budget_bytes = memory.GetBytes("budget", {.min = 64 * kMiB});       // required
//   config.lease_ms = root.GetDurationMs("lease", {.min = 100}, 15000);        // optional
//   for (ConfigReader node : root.Tables("node")) ...                         // [[node]]
//   RETURN_IF_ERROR(root.Finish());
//
// Getters never fail by themselves: after an error they return the default (or the lowest allowed
// value) and remember the error, and Finish() reports all of them, one line each:
//
//   luwud.toml:7: key 'memory.bugdet': unknown key; did you mean 'budget'?
//
// A reader is a cheap handle: tables stay valid as long as any reader of the document. Not
// thread-safe. Exists so that toml++ is included in one file and all schemas report errors alike.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace luwu {

struct U64Range {  // inclusive
  uint64_t min = 0;
  uint64_t max = std::numeric_limits<int64_t>::max();  // what a TOML integer can hold
};

class ConfigReader {
 public:
  // `source_name` is how errors call the text, normally its path. kInvalidArgument with the line
  // for text that is not TOML (duplicate keys included).
  static StatusOr<ConfigReader> Parse(std::string_view text, const std::string& source_name);
  // Parse() of a file's content (up to 1 MiB). kNotFound or kPermission when it cannot be read.
  static StatusOr<ConfigReader> ReadFile(const std::string& path);

  // Without `preset` the key is required.
  uint64_t GetU64(std::string_view key, U64Range range,
                  std::optional<uint64_t> preset = std::nullopt);
  // Integers in brackets; empty when missing.
  std::vector<uint64_t> GetU64List(std::string_view key, U64Range range);
  // Strings in brackets, none empty; an empty list when missing.
  std::vector<std::string> GetStringList(std::string_view key);
  // An integer (bytes) or a string with a unit: "4096 B", "64KiB", "512 MiB", "4GiB", "2TiB".
  uint64_t GetBytes(std::string_view key, U64Range range,
                    std::optional<uint64_t> preset = std::nullopt);
  // An integer (milliseconds) or a string with a unit: "250ms", "15 s", "2min", "1h".
  uint64_t GetDurationMs(std::string_view key, U64Range range,
                         std::optional<uint64_t> preset = std::nullopt);
  // Not empty unless the preset is.
  std::string GetString(std::string_view key, std::optional<std::string> preset = std::nullopt);
  // One of `choices`.
  std::string GetChoice(std::string_view key, const std::vector<std::string>& choices,
                        std::optional<std::string> preset = std::nullopt);
  bool GetBool(std::string_view key, std::optional<bool> preset = std::nullopt);

  bool Has(std::string_view key) const;
  // [key]. When it is missing, an empty table: optional keys take their presets, required ones are
  // errors.
  ConfigReader Table(std::string_view key);
  // [[key]], in order; empty when missing.
  std::vector<ConfigReader> Tables(std::string_view key);

  // For checks that the getters cannot make: remembers "file:line: key 'path.key': message".
  void AddError(std::string_view key, const std::string& message);

  // On any reader of the document, after the last getter: OK, or kInvalidArgument with all errors.
  Status Finish() const;

 private:
  struct Document;
  struct TableState;
  struct Notation {
    std::string_view wanted;                                  // what to write, for messages
    StatusOr<uint64_t> (*parse)(std::string_view) = nullptr;  // of a string; null: integers only
    std::string (*show)(uint64_t) = nullptr;                  // null: as a plain number
  };
  uint64_t GetNumber(std::string_view key, U64Range range, std::optional<uint64_t> preset,
                     const Notation& notation);
  ConfigReader(std::shared_ptr<Document> document, TableState* table)
      : document_(std::move(document)), table_(table) {}

  std::shared_ptr<Document> document_;
  TableState* table_ = nullptr;  // owned by document_
};

}  // namespace luwu
