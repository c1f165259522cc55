#include "tests/fakes/fake_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace luwu::fakes {

class FakeFile final : public persist::BlockFile {
 public:
  FakeFile(FakeDisk* disk, std::string path, std::shared_ptr<FakeDisk::Content> content)
      : disk_(disk), path_(std::move(path)), content_(std::move(content)) {}

  int64_t ReadAt(ByteSpan data, uint64_t offset) override {
    if (const int error = disk_->Check(FakeDisk::Op::kRead, path_); error != 0) return -error;
    const MutexLock lock(disk_->mutex_);
    if (offset >= content_->size) return 0;
    const uint64_t bytes = Some(std::min<uint64_t>(data.size(), content_->size - offset));
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t in_block = (offset + at) % 4096;
      const uint64_t part = std::min(bytes - at, 4096 - in_block);
      const auto block = content_->blocks.find((offset + at) / 4096);
      if (block == content_->blocks.end())
        std::memset(data.data() + at, 0, part);
      else
        std::memcpy(data.data() + at, block->second.data() + in_block, part);
      at += part;
    }
    return static_cast<int64_t>(bytes);
  }
  int64_t WriteAt(ConstByteSpan data, uint64_t offset) override {
    if (const int error = disk_->Check(FakeDisk::Op::kWrite, path_); error != 0) return -error;
    const MutexLock lock(disk_->mutex_);
    const ConstByteSpan part = data.first(Some(data.size()));
    FakeDisk::Put(&content_->blocks, offset, part);
    content_->size = std::max(content_->size, offset + part.size());
    content_->unsynced.push_back({offset, {part.begin(), part.end()}});
    return static_cast<int64_t>(part.size());
  }
  int Allocate(uint64_t, uint64_t end) override {
    if (const int error = disk_->Check(FakeDisk::Op::kAllocate, path_); error != 0) return -error;
    const MutexLock lock(disk_->mutex_);
    if (end <= content_->size) return 0;
    if (disk_->UsedBytes() + end - content_->size > disk_->capacity_) return -ENOSPC;
    content_->size = end;
    content_->unsynced.push_back({end, {}});
    return 0;
  }
  int Truncate(uint64_t size) override {
    if (const int error = disk_->Check(FakeDisk::Op::kAllocate, path_); error != 0) return -error;
    const MutexLock lock(disk_->mutex_);
    content_->size = size;
    content_->durable_size = std::min(content_->durable_size, size);
    return 0;
  }
  int Sync() override {
    if (const int error = disk_->Check(FakeDisk::Op::kSync, path_); error != 0) return -error;
    const MutexLock lock(disk_->mutex_);
    for (const FakeDisk::Unsynced& write : content_->unsynced)
      FakeDisk::Put(&content_->durable_blocks, write.offset, write.data);
    content_->durable_size = content_->size;
    content_->unsynced.clear();
    return 0;
  }
  int64_t Size() override {
    const MutexLock lock(disk_->mutex_);
    return static_cast<int64_t>(content_->size);
  }
  int descriptor() const override { return -1; }

 private:
  // All of it, or, when transfers are short, some blocks.
  uint64_t Some(uint64_t bytes) const {
    return disk_->short_transfers_ && bytes > 8192 ? AlignUp(bytes / 2, 4096) : bytes;
  }

  FakeDisk* const disk_;
  const std::string path_;
  const std::shared_ptr<FakeDisk::Content> content_;
};

void FakeDisk::set_fault(Fault fault) {
  const MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

int FakeDisk::Check(Op op, const std::string& path) {
  if (power_ != nullptr && !power_->Use()) return EIO;
  Fault fault;
  {
    const MutexLock lock(mutex_);
    fault = fault_;
  }
  return fault ? fault(op, path) : 0;
}

void FakeDisk::Put(std::map<uint64_t, Block>* blocks, uint64_t offset, ConstByteSpan data) {
  for (uint64_t at = 0; at < data.size();) {
    const uint64_t in_block = (offset + at) % 4096;
    const uint64_t part = std::min<uint64_t>(data.size() - at, 4096 - in_block);
    std::memcpy((*blocks)[(offset + at) / 4096].data() + in_block, data.data() + at, part);
    at += part;
  }
}

void FakeDisk::LosePower(std::mt19937_64* random) {
  const MutexLock lock(mutex_);
  for (auto& [path, content] : files_) {
    std::shuffle(content->unsynced.begin(), content->unsynced.end(), *random);
    for (const Unsynced& write : content->unsynced) {
      const uint64_t fate = (*random)() % 3;
      if (fate == 0) continue;
      if (write.data.empty()) {
        content->durable_size = std::max(content->durable_size, write.offset);
        continue;
      }
      for (uint64_t at = 0; at < write.data.size(); at += 512) {
        if (fate == 1 && (*random)() % 2 == 0) continue;
        const uint64_t bytes = std::min<uint64_t>(512, write.data.size() - at);
        Put(&content->durable_blocks, write.offset + at, {write.data.data() + at, bytes});
        content->durable_size = std::max(content->durable_size, write.offset + at + bytes);
      }
    }
    content->unsynced.clear();
    content->blocks = content->durable_blocks;
    content->size = content->durable_size;
  }
  for (const auto& [folder, changes] : changes_) {
    const uint64_t lost = (*random)() % (changes.size() + 1);
    for (uint64_t i = 0; i < lost; ++i) {
      const Change& change = changes[changes.size() - 1 - i];
      if (change.before == nullptr)
        files_.erase(change.path);
      else
        files_[change.path] = change.before;
    }
  }
  changes_.clear();
}

std::vector<std::string> FakeDisk::Paths() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, content] : files_) paths.push_back(path);
  return paths;
}

uint64_t FakeDisk::SizeOf(const std::string& path) const {
  const MutexLock lock(mutex_);
  return files_.at(path)->size;
}

void FakeDisk::Flip(const std::string& path, uint64_t offset, std::byte mask) {
  const MutexLock lock(mutex_);
  files_.at(path)->blocks[offset / 4096][offset % 4096] ^= mask;
}

uint64_t FakeDisk::UsedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, content] : files_) bytes += content->size;
  return bytes;
}

persist::OpenedFile FakeDisk::Open(const std::string& path) {
  persist::OpenedFile opened;
  opened.error = Check(Op::kOpen, path);
  if (opened.error != 0) return opened;
  const MutexLock lock(mutex_);
  std::shared_ptr<Content>& content = files_[path];
  if (content == nullptr) {
    content = std::make_shared<Content>();
    changes_[path.substr(0, path.rfind('/'))].push_back({path, nullptr});
  }
  opened.file = std::make_unique<FakeFile>(this, path, content);
  opened.direct = true;
  return opened;
}

int FakeDisk::Remove(const std::string& path) {
  if (const int error = Check(Op::kRemove, path); error != 0) return -error;
  const MutexLock lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end()) return 0;
  changes_[path.substr(0, path.rfind('/'))].push_back({path, found->second});
  files_.erase(found);
  return 0;
}

int FakeDisk::SyncDirectory(const std::string& path) {
  if (const int error = Check(Op::kSync, path); error != 0) return -error;
  const MutexLock lock(mutex_);
  changes_.erase(path);
  return 0;
}

uint64_t FakeDisk::FreeBytes(const std::string&) {
  const MutexLock lock(mutex_);
  const uint64_t used = UsedBytes();
  return used > capacity_ ? 0 : capacity_ - used;
}

uint64_t FakeDisk::TotalBytes(const std::string&) { return kTotalBytes; }

}  // namespace luwu::fakes
