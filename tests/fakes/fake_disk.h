// A disk in memory under the extent engine. It can be full, fail, transfer less than it is asked
// to, flip bits, and lose what was not synced when the power fails: each unsynced write is then
// kept, lost, or torn at 512 bytes, in any order; of the files that were made or removed in a
// folder since it was synced, the last ones are not, or are there again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "server/persist/block_file.h"
#include "tests/fakes/power.h"

namespace luwu::fakes {

class FakeDisk final : public persist::BlockFileSystem {
 public:
  enum class Op { kOpen, kAllocate, kRead, kWrite, kSync, kRemove };
  // Called before each operation; a positive errno makes it fail.
  using Fault = std::function<int(Op op, const std::string& path)>;

  explicit FakeDisk(Power* power = nullptr) : power_(power) {}

  static constexpr uint64_t kTotalBytes = uint64_t{1} << 40;
  // How much of that there is for us.
  void set_capacity(uint64_t bytes) { capacity_ = bytes; }
  void set_short_transfers(bool on) { short_transfers_ = on; }
  void set_fault(Fault fault);
  // What is left after the power was gone.
  void LosePower(std::mt19937_64* random);
  std::vector<std::string> Paths() const;
  uint64_t SizeOf(const std::string& path) const;
  void Flip(const std::string& path, uint64_t offset, std::byte mask);

  persist::OpenedFile Open(const std::string& path) override;
  int Remove(const std::string& path) override;
  int SyncDirectory(const std::string& path) override;
  uint64_t FreeBytes(const std::string& path) override;
  uint64_t TotalBytes(const std::string& path) override;

 private:
  friend class FakeFile;
  using Block = std::array<std::byte, 4096>;
  struct Unsynced {
    uint64_t offset = 0;
    std::vector<std::byte> data;  // empty: the file has grown to `offset`
  };
  struct Content {
    std::map<uint64_t, Block> blocks;  // what is missing is zero
    uint64_t size = 0;
    std::map<uint64_t, Block> durable_blocks;
    uint64_t durable_size = 0;
    std::vector<Unsynced> unsynced;
  };

  // A file of this name was made (nothing was there) or removed; its folder was not synced.
  struct Change {
    std::string path;
    std::shared_ptr<Content> before;
  };
  int Check(Op op, const std::string& path);
  static void Put(std::map<uint64_t, Block>* blocks, uint64_t offset, ConstByteSpan data);
  uint64_t UsedBytes() const LUWU_REQUIRES(mutex_);

  Power* const power_;
  std::atomic<uint64_t> capacity_{kTotalBytes};
  std::atomic<bool> short_transfers_{false};
  mutable Mutex mutex_;
  Fault fault_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Content>> files_ LUWU_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<Change>> changes_ LUWU_GUARDED_BY(mutex_);  // by folder
};

}  // namespace luwu::fakes
