#include "server/persist/record.h"

#include <bit>
#include <cstring>
#include <span>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/crc32c.h"

namespace luwu::persist {
namespace {

template <typename T>
void AppendBig(std::string* out, T value) {
  for (size_t i = sizeof(T); i-- > 0;) out->push_back(static_cast<char>(value >> (8 * i)));
}
template <typename T>
T BigAt(std::string_view text, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value << 8) | static_cast<unsigned char>(text[at + i]);
  return value;
}

uint32_t CrcOf(std::string_view text, uint32_t previous) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())), previous);
}

class Encoder {
 public:
  Encoder() { U32(kRecordFormat); }
  void U32(uint32_t value) { Append(value); }
  void U64(uint64_t value) { Append(value); }
  void Text(const std::string& text) {
    U64(text.size());
    out_ += text;
  }
  void PadTo(size_t bytes) { out_.resize(bytes, '\0'); }
  std::string Seal(std::string_view key) {
    U32(CrcOf(out_, CrcOf(key, 0)));
    return std::move(out_);
  }

 private:
  template <typename T>
  void Append(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string out_;
};

// Reads past the end give zero and make ok() false.
class Decoder {
 public:
  explicit Decoder(std::string_view value) : left_(value) {}
  uint32_t U32() { return Take<uint32_t>(); }
  uint64_t U64() { return Take<uint64_t>(); }
  std::string Text() {
    const uint64_t bytes = U64();
    if (bytes > left_.size()) {
      ok_ = false;
      return "";
    }
    const std::string text(left_.substr(0, bytes));
    left_.remove_prefix(bytes);
    return text;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

 private:
  template <typename T>
  T Take() {
    if (left_.size() < sizeof(T)) {
      ok_ = false;
      return 0;
    }
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<T>(static_cast<unsigned char>(left_[i])) << (8 * i);
    left_.remove_prefix(sizeof(T));
    return value;
  }
  std::string_view left_;
  bool ok_ = true;
};

std::string KeyText(std::string_view key) {
  std::string text;
  for (const char c : key) {
    const bool plain = c > ' ' && c < 127;
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

Status Damaged(std::string_view key, const char* what) {
  return Error(ErrorCode::kCorrupt, "record {} of the catalogue: {}", KeyText(key), what);
}

// What follows the format word and precedes the checksum, both checked.
StatusOr<Decoder> Unseal(std::string_view key, std::string_view value) {
  if (value.size() < 2 * sizeof(uint32_t)) return Damaged(key, "too short");
  const size_t body = value.size() - sizeof(uint32_t);
  if (Decoder(value.substr(body)).U32() != CrcOf(value.substr(0, body), CrcOf(key, 0)))
    return Damaged(key, "its checksum is wrong");
  Decoder decoder(value.substr(0, body));
  if (const uint32_t format = decoder.U32(); format != kRecordFormat) {
    return Error(ErrorCode::kUnsupported,
                 "record {} of the catalogue has format {}, this version knows {}: run the version "
                 "that wrote it, or a newer one",
                 KeyText(key), format, kRecordFormat);
  }
  return decoder;
}

template <typename T>
StatusOr<T> Finish(std::string_view key, const Decoder& decoder, T value) {
  if (!decoder.ok()) return Damaged(key, "it ends too early");
  return value;
}

// False when the key is not as long as keys of its kind are.
bool JobOfKey(std::string_view key, size_t bytes, uint32_t* job) {
  if (key.size() != bytes) return false;
  *job = BigAt<uint32_t>(key, 1);
  return true;
}

void Append(Encoder* encoder, const StoredPoint& stored) {
  encoder->U32(stored.branch);
  encoder->U64(stored.point.step);
  encoder->U64(stored.point.epoch);
  encoder->U32(std::bit_cast<uint32_t>(stored.point.loss_scale));
  encoder->U32(stored.point.finite_steps);
  encoder->U64(stored.point.skipped_steps);
}

StoredPoint TakePoint(Decoder* decoder) {
  StoredPoint stored;
  stored.branch = decoder->U32();
  stored.point.step = decoder->U64();
  stored.point.epoch = decoder->U64();
  stored.point.loss_scale = std::bit_cast<float>(decoder->U32());
  stored.point.finite_steps = decoder->U32();
  stored.point.skipped_steps = decoder->U64();
  return stored;
}

}  // namespace

std::string JobPrefix(RecordKind kind, uint32_t job) {
  std::string key(1, static_cast<char>(kind));
  AppendBig(&key, job);
  return key;
}

std::string CounterKey() { return std::string(1, static_cast<char>(RecordKind::kCounter)); }
std::string ChangeKey() { return std::string(1, static_cast<char>(RecordKind::kChange)); }
std::string JobKey(uint32_t job) { return JobPrefix(RecordKind::kJob, job); }
std::string BranchKey(uint32_t job, uint32_t branch) {
  std::string key = JobPrefix(RecordKind::kBranch, job);
  AppendBig(&key, branch);
  return key;
}
std::string GenerationKey(uint32_t job, const StoredGeneration& stored) {
  std::string key = JobPrefix(RecordKind::kGeneration, job);
  AppendBig(&key, stored.shard);
  AppendBig(&key, stored.branch);
  AppendBig(&key, stored.generation.step);
  return key;
}
std::string PointKey(uint32_t job, const StoredPoint& stored) {
  std::string key = JobPrefix(RecordKind::kPoint, job);
  AppendBig(&key, stored.point.step);
  return key;
}
std::string CheckpointKey(uint32_t job, const std::string& name) {
  return JobPrefix(RecordKind::kCheckpoint, job) + name;
}
std::string ValueKey(uint32_t job, uint64_t slot) {
  std::string key = JobPrefix(RecordKind::kInlineValue, job);
  AppendBig(&key, slot);
  return key;
}

std::string EncodeCounter(uint32_t next_job) {
  Encoder encoder;
  encoder.U32(next_job);
  return encoder.Seal(CounterKey());
}

std::string EncodeChange(uint64_t change) {
  Encoder encoder;
  encoder.U64(change);
  return encoder.Seal(ChangeKey());
}

std::string EncodeJob(const StoredJob& job) {
  Encoder encoder;
  encoder.U32(job.branch);
  encoder.U64(job.reserve_bytes);
  encoder.U64(job.record.epoch);
  encoder.U64(job.record.nodes_fingerprint);
  encoder.Text(job.record.name);
  encoder.Text(job.record.spec);
  if (!job.record.restoring.empty()) encoder.Text(job.record.restoring);
  return encoder.Seal(JobKey(job.number));
}

std::string EncodeBranch(uint32_t job, const Branch& branch) {
  Encoder encoder;
  encoder.U32(branch.parent);
  encoder.U64(branch.fork_step);
  return encoder.Seal(BranchKey(job, branch.number));
}

std::string EncodeGeneration(uint32_t job, const StoredGeneration& stored) {
  const Generation& generation = stored.generation;
  Encoder encoder;
  encoder.U32(generation.crc32c);
  encoder.U64(generation.step);
  encoder.U64(generation.applied);
  encoder.U64(generation.place);
  encoder.U64(generation.bytes);
  encoder.PadTo(kGenerationRecordBytes - sizeof(uint32_t));
  std::string record = encoder.Seal(GenerationKey(job, stored));
  LUWU_CHECK(record.size() == kGenerationRecordBytes, "a generation's record has its size");
  return record;
}

std::string EncodePoint(uint32_t job, const StoredPoint& stored) {
  Encoder encoder;
  Append(&encoder, stored);
  return encoder.Seal(PointKey(job, stored));
}

std::string EncodeCheckpoint(uint32_t job, const StoredCheckpoint& stored) {
  Encoder encoder;
  Append(&encoder, StoredPoint{stored.branch, stored.checkpoint.point});
  encoder.U64(static_cast<uint64_t>(stored.checkpoint.created_unix_s));
  return encoder.Seal(CheckpointKey(job, stored.checkpoint.name));
}

StatusOr<uint32_t> DecodeCounter(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  const uint32_t next_job = decoder.U32();
  return Finish(key, decoder, next_job);
}

StatusOr<uint64_t> DecodeChange(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  const uint64_t change = decoder.U64();
  return Finish(key, decoder, change);
}

StatusOr<StoredJob> DecodeJob(std::string_view key, std::string_view value) {
  StoredJob job;
  if (!JobOfKey(key, 5, &job.number)) return Damaged(key, "no key of a job");
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  job.branch = decoder.U32();
  job.reserve_bytes = decoder.U64();
  job.record.epoch = decoder.U64();
  job.record.nodes_fingerprint = decoder.U64();
  job.record.name = decoder.Text();
  job.record.spec = decoder.Text();
  if (!decoder.at_end()) job.record.restoring = decoder.Text();
  return Finish(key, decoder, job);
}

StatusOr<Branch> DecodeBranch(std::string_view key, std::string_view value, uint32_t* job) {
  if (!JobOfKey(key, 9, job)) return Damaged(key, "no key of a branch");
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  Branch branch;
  branch.number = BigAt<uint32_t>(key, 5);
  branch.parent = decoder.U32();
  branch.fork_step = decoder.U64();
  return Finish(key, decoder, branch);
}

StatusOr<StoredGeneration> DecodeGeneration(std::string_view key, std::string_view value,
                                            uint32_t* job) {
  if (!JobOfKey(key, 21, job)) return Damaged(key, "no key of a generation");
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  StoredGeneration stored;
  stored.shard = BigAt<uint32_t>(key, 5);
  stored.branch = BigAt<uint32_t>(key, 9);
  stored.generation.crc32c = decoder.U32();
  stored.generation.step = decoder.U64();
  stored.generation.applied = decoder.U64();
  stored.generation.place = decoder.U64();
  stored.generation.bytes = decoder.U64();
  return Finish(key, decoder, stored);
}

StatusOr<StoredPoint> DecodePoint(std::string_view key, std::string_view value, uint32_t* job) {
  if (!JobOfKey(key, 13, job)) return Damaged(key, "no key of a point");
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  const StoredPoint stored = TakePoint(&decoder);
  return Finish(key, decoder, stored);
}

StatusOr<StoredCheckpoint> DecodeCheckpoint(std::string_view key, std::string_view value,
                                            uint32_t* job) {
  if (key.size() < 5) return Damaged(key, "no key of a checkpoint");
  *job = BigAt<uint32_t>(key, 1);
  ASSIGN_OR_RETURN(Decoder decoder, Unseal(key, value));
  StoredCheckpoint stored;
  const StoredPoint point = TakePoint(&decoder);
  stored.branch = point.branch;
  stored.checkpoint.point = point.point;
  stored.checkpoint.created_unix_s = static_cast<int64_t>(decoder.U64());
  stored.checkpoint.name = std::string(key.substr(5));
  return Finish(key, decoder, stored);
}

Status JobOfValueKey(std::string_view key, uint32_t* job) {
  const bool value = !key.empty() && key[0] == static_cast<char>(RecordKind::kInlineValue);
  return value && JobOfKey(key, 13, job) ? OkStatus() : Damaged(key, "no key of a value");
}

}  // namespace luwu::persist
