// How far the catalogue must reach: the number of its newest change that somebody has been told of,
// in the file PROMISED. RocksDB takes a log that ends too early, is empty, or is gone for one that
// was just being written, and cannot tell an end that was never synced from damage. With the number
// both are told: what is at or below it is there, or data are lost; what is above it nobody counts
// on. Changes that were not synced are promised to survive the process, not the machine: they count
// as long as the kernel that took them runs (its boot id).
//
// Two blocks are written in turns, each in one sector, so that a torn write leaves the other one.
// Thread-compatible: the catalogue's lock guards it. Calls block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "server/persist/block_file.h"

namespace luwu::persist {

struct Promise {
  uint64_t turn = 0;     // the newer of two blocks has the higher one
  uint64_t synced = 0;   // this change and those before it survive the machine
  uint64_t written = 0;  // this one and those before it survive the process; at least `synced`
  std::string boot_id;   // of the kernel that has what is not synced
  std::string what;      // the newest change in words, for messages

  bool operator==(const Promise&) const = default;
};

// Of one block. Nothing when it is damaged.
std::string EncodePromise(const Promise& promise);
std::optional<Promise> DecodePromise(std::string_view block);

class Promises {
 public:
  // `create`: begins anew, promising nothing; else kCorrupt when there is no block that is whole.
  // `boot_id` empty: not known, so that every start is one after a loss of power.
  static StatusOr<std::unique_ptr<Promises>> Open(const std::string& folder,
                                                  std::shared_ptr<BlockFileSystem> files,
                                                  const std::string& boot_id, bool create);

  // The change that the catalogue must have at this start.
  uint64_t required() const { return required_; }
  // kCorrupt, in words, when the catalogue's newest change is an older one.
  Status Check(uint64_t change, const std::string& catalogue) const;
  // The change is in the catalogue, synced or not. kResourceExhausted, kCorrupt.
  Status Record(uint64_t change, bool synced, const std::string& what);

 private:
  Promises(std::string path, std::shared_ptr<BlockFileSystem> files, Mapping block)
      : path_(std::move(path)), files_(std::move(files)), block_(std::move(block)) {}
  Status Fail(const char* what, int64_t result) const;
  // Into the block; what the file does not have is zero.
  Status ReadBlock(uint64_t offset);
  Status WriteBlock(uint64_t offset);

  const std::string path_;
  const std::shared_ptr<BlockFileSystem> files_;
  const Mapping block_;
  std::unique_ptr<BlockFile> file_;
  Promise newest_;
  uint64_t required_ = 0;
};

// Of the running kernel; empty when it does not say.
std::string BootId();

}  // namespace luwu::persist
