// A record of the catalogue, as bytes: one byte for the length of the key, the key, the value; and
// the same bytes as a block of PROMISED. What is accepted comes back the same from what we write.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "server/persist/promises.h"
#include "server/persist/record.h"

namespace luwu::persist {
namespace {

void TryKey(std::string_view key, const std::string& value) {
  uint32_t job = 0;
  if (const auto counter = DecodeCounter(key, value); counter.ok() && key == CounterKey())
    LUWU_CHECK(EncodeCounter(*counter) == value, "the same counter");
  if (const auto change = DecodeChange(key, value); change.ok() && key == ChangeKey())
    LUWU_CHECK(EncodeChange(*change) == value, "the same change");
  if (const auto stored = DecodeJob(key, value); stored.ok() && key == JobKey(stored->number))
    LUWU_CHECK(DecodeJob(key, EncodeJob(*stored))->record == stored->record, "the same job");
  if (const auto stored = DecodeGeneration(key, value, &job);
      stored.ok() && key == GenerationKey(job, *stored))
    LUWU_CHECK(*DecodeGeneration(key, EncodeGeneration(job, *stored), &job) == *stored,
               "the same generation");
  if (const auto stored = DecodePoint(key, value, &job); stored.ok()) {
    // Compared as bytes: a loss scale that is no number is not equal to itself.
    const std::string written = EncodePoint(job, *stored);
    LUWU_CHECK(EncodePoint(job, *DecodePoint(PointKey(job, *stored), written, &job)) == written,
               "the same point");
  }
  if (const auto stored = DecodeCheckpoint(key, value, &job); stored.ok()) {
    const std::string written = EncodeCheckpoint(job, *stored);
    const auto again = DecodeCheckpoint(CheckpointKey(job, stored->checkpoint.name), written, &job);
    LUWU_CHECK(EncodeCheckpoint(job, *again) == written, "the same checkpoint");
  }
  (void)DecodeBranch(key, value, &job);
  (void)JobOfValueKey(key, &job);
}

// As it is, and with the checksum that it needs to come further.
void TryRecord(std::string_view key, std::string value) {
  TryKey(key, value);
  const auto bytes = [](std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  };
  const uint32_t crc = Crc32c(bytes(value), Crc32c(bytes(key), 0));
  for (int i = 0; i < 4; ++i) value.push_back(static_cast<char>(crc >> (8 * i)));
  TryKey(key, value);
}

void TryPromise(std::string_view block) {
  const std::optional<Promise> promise = DecodePromise(block);
  if (promise && promise->what.size() <= 200 && promise->boot_id.size() <= 200)
    LUWU_CHECK(DecodePromise(EncodePromise(*promise)).has_value(), "the same promise");
}

}  // namespace
}  // namespace luwu::persist

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(data, data + size);
  luwu::persist::TryPromise(bytes);
  if (bytes.empty()) return 0;
  const size_t key = std::min<size_t>(static_cast<uint8_t>(bytes[0]), bytes.size() - 1);
  luwu::persist::TryRecord(std::string_view(bytes).substr(1, key), bytes.substr(1 + key));
  return 0;
}
