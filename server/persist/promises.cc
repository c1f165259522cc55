#include "server/persist/promises.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "common/base/crc32c.h"
#include "server/persist/generation.h"

namespace luwu::persist {
namespace {

constexpr uint32_t kRetriesMax = 100;
constexpr size_t kWordsMax = 200;  // so that a block's text stays within a sector
constexpr std::string_view kFirstLine = "luwu promised\n";

bool TakeText(std::string_view text, std::string_view* left) {
  if (!left->starts_with(text)) return false;
  left->remove_prefix(text.size());
  return true;
}

// "<name> <rest of the line>\n"
bool TakeLine(std::string_view name, std::string_view* left, std::string_view* value) {
  if (!TakeText(name, left) || !TakeText(" ", left)) return false;
  const size_t end = left->find('\n');
  if (end == std::string_view::npos) return false;
  *value = left->substr(0, end);
  left->remove_prefix(end + 1);
  return true;
}

bool TakeNumber(std::string_view name, std::string_view* left, uint64_t* number) {
  std::string_view text;
  if (!TakeLine(name, left, &text)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string CrcLine(std::string_view text) {
  return fmt::format("crc32c {:08x}\n", Crc32c(std::as_bytes(std::span(text.data(), text.size()))));
}

std::string OneLine(std::string text) {
  text.resize(std::min(text.size(), kWordsMax));
  for (char& c : text) {
    if (c == '\n' || c == '\0') c = ' ';
  }
  return text;
}

}  // namespace

std::string EncodePromise(const Promise& promise) {
  const std::string text =
      fmt::format("{}turn {}\nsynced {}\nwritten {}\nboot {}\nwhat {}\n", kFirstLine, promise.turn,
                  promise.synced, promise.written, OneLine(promise.boot_id), OneLine(promise.what));
  return text + CrcLine(text);
}

std::optional<Promise> DecodePromise(std::string_view block) {
  std::string_view left = block;
  Promise promise;
  std::string_view boot_id;
  std::string_view what;
  const bool whole = TakeText(kFirstLine, &left) && TakeNumber("turn", &left, &promise.turn) &&
                     TakeNumber("synced", &left, &promise.synced) &&
                     TakeNumber("written", &left, &promise.written) &&
                     TakeLine("boot", &left, &boot_id) && TakeLine("what", &left, &what);
  if (!whole || !left.starts_with(CrcLine(block.substr(0, block.size() - left.size()))))
    return std::nullopt;
  promise.boot_id = boot_id;
  promise.what = what;
  return promise;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

StatusOr<std::unique_ptr<Promises>> Promises::Open(const std::string& folder,
                                                   std::shared_ptr<BlockFileSystem> files,
                                                   const std::string& boot_id, bool create) {
  ASSIGN_OR_RETURN(Mapping block, AllocateHuge(kIoAlignment));
  const std::string path = folder + "/PROMISED";
  std::unique_ptr<Promises> promises(new Promises(path, std::move(files), std::move(block)));
  OpenedFile opened = promises->files_->Open(promises->path_);
  if (opened.error != 0) return promises->Fail("opening", -opened.error);
  promises->file_ = std::move(opened.file);
  std::optional<Promise> newest;
  for (const uint64_t offset : {uint64_t{0}, kIoAlignment}) {
    RETURN_IF_ERROR(promises->ReadBlock(offset));
    const void* const data = promises->block_.data();
    const std::optional<Promise> found =
        DecodePromise({static_cast<const char*>(data), kIoAlignment});
    if (found && (!newest || found->turn > newest->turn)) newest = found;
  }
  if (create) {
    promises->newest_.boot_id = boot_id;
    if (newest) promises->newest_.turn = newest->turn;
    if (const int error = promises->file_->Allocate(0, 2 * kIoAlignment); error < 0)
      return promises->Fail("allocating", error);
    RETURN_IF_ERROR(promises->Record(0, /*synced=*/true, "none"));
    const int error = promises->files_->SyncDirectory(folder);
    if (error < 0) return promises->Fail("syncing the folder of", error);
    return promises;
  }
  if (!newest) {
    return Error(ErrorCode::kCorrupt,
                 "{} is missing or damaged: what the catalogue must hold is not known; restore the "
                 "directory from a copy, or move it away and restore a checkpoint or an export",
                 promises->path_);
  }
  promises->newest_ = *newest;
  const bool same_boot = !boot_id.empty() && newest->boot_id == boot_id;
  promises->required_ = same_boot ? newest->written : newest->synced;
  promises->newest_.boot_id = boot_id;
  return promises;
}

Status Promises::Check(uint64_t change, const std::string& catalogue) const {
  if (change >= required_) return OkStatus();
  return Error(ErrorCode::kCorrupt,
               "the catalogue in {} has lost changes that were promised to last: it ends at change "
               "{}, and {} were made, the last of them {}; nothing was touched: restore the "
               "directory from a copy, or move it away and restore a checkpoint or an export",
               catalogue, change, required_, newest_.what);
}

Status Promises::Record(uint64_t change, bool synced, const std::string& what) {
  Promise next = newest_;
  ++next.turn;
  next.written = change;
  if (synced) next.synced = change;
  next.what = what;
  const std::string text = EncodePromise(next);
  std::memset(block_.data(), 0, kIoAlignment);
  std::memcpy(block_.data(), text.data(), text.size());
  RETURN_IF_ERROR(WriteBlock(next.turn % 2 * kIoAlignment));
  if (synced) {
    if (const int error = file_->Sync(); error < 0) return Fail("syncing", error);
  }
  newest_ = next;
  return OkStatus();
}

Status Promises::Fail(const char* what, int64_t result) const {
  const int error = result < 0 ? static_cast<int>(-result) : EIO;
  const bool full = error == ENOSPC || error == EDQUOT;
  return Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kCorrupt, "{} {}: {}", what, path_,
               std::strerror(error));
}

Status Promises::ReadBlock(uint64_t offset) {
  std::memset(block_.data(), 0, kIoAlignment);
  for (uint32_t tries = 0; tries < kRetriesMax; ++tries) {
    const int64_t got = file_->ReadAt({block_.data(), kIoAlignment}, offset);
    if (got >= 0) return OkStatus();
    if (got != -EINTR && got != -EAGAIN) return Fail("reading", got);
  }
  return Fail("reading", -EIO);
}

Status Promises::WriteBlock(uint64_t offset) {
  for (uint32_t tries = 0; tries < kRetriesMax; ++tries) {
    const int64_t put = file_->WriteAt({block_.data(), kIoAlignment}, offset);
    if (put == static_cast<int64_t>(kIoAlignment)) return OkStatus();
    if (put < 0 && put != -EINTR && put != -EAGAIN) return Fail("writing", put);
  }
  return Fail("writing", -EIO);
}

}  // namespace luwu::persist
