#include "tests/fakes/fault_file_system.h"

#include <algorithm>
#include <utility>

#include <rocksdb/slice.h>

namespace luwu::fakes {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class FaultWritable final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultWritable(FaultFileSystem* files, std::string name,
                std::unique_ptr<rocksdb::FSWritableFile> target)
      : FSWritableFileOwnerWrapper(std::move(target)), files_(files), name_(std::move(name)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = files_->Check(FaultFileSystem::Op::kAppend, name_);
    if (status.ok()) status = FSWritableFileOwnerWrapper::Append(data, options, debug);
    if (status.ok()) files_->Appended(name_, data.size());
    return status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    IOStatus status = files_->Check(FaultFileSystem::Op::kAppend, name_);
    if (status.ok())
      status = FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, debug);
    if (status.ok()) files_->Appended(name_, data.size());
    return status;
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = files_->Check(FaultFileSystem::Op::kSync, name_);
    if (status.ok()) status = FSWritableFileOwnerWrapper::Sync(options, debug);
    if (status.ok()) files_->Synced(name_);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  FaultFileSystem* const files_;
  const std::string name_;
};

class FaultReadable final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultReadable(FaultFileSystem* files, std::string name,
                std::unique_ptr<rocksdb::FSRandomAccessFile> target)
      : FSRandomAccessFileOwnerWrapper(std::move(target)), files_(files), name_(std::move(name)) {}

  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions& options, Slice* result,
                char* scratch, IODebugContext* debug) const override {
    IOStatus status = files_->Check(FaultFileSystem::Op::kRead, name_);
    if (!status.ok()) return status;
    return FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, debug);
  }

 private:
  FaultFileSystem* const files_;
  const std::string name_;
};

class FaultDirectory final : public rocksdb::FSDirectory {
 public:
  FaultDirectory(FaultFileSystem* files, std::string name,
                 std::unique_ptr<rocksdb::FSDirectory> target)
      : files_(files), name_(std::move(name)), target_(std::move(target)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = files_->Check(FaultFileSystem::Op::kSync, name_);
    if (status.ok()) status = target_->Fsync(options, debug);
    if (status.ok()) files_->SyncedFolder(name_);
    return status;
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    return target_->Close(options, debug);
  }

 private:
  FaultFileSystem* const files_;
  const std::string name_;
  const std::unique_ptr<rocksdb::FSDirectory> target_;
};

namespace {

std::string FolderOf(const std::string& name) { return name.substr(0, name.rfind('/')); }

}  // namespace

void FaultFileSystem::set_fault(Fault fault) {
  const MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

IOStatus FaultFileSystem::Check(Op op, const std::string& name) {
  if (power_ != nullptr && !power_->Use()) return IOStatus::IOError("no power");
  Fault fault;
  {
    const MutexLock lock(mutex_);
    fault = fault_;
  }
  return fault ? fault(op, name) : IOStatus::OK();
}

void FaultFileSystem::Appended(const std::string& name, uint64_t bytes) {
  const MutexLock lock(mutex_);
  sizes_[name].written += bytes;
}

void FaultFileSystem::Synced(const std::string& name) {
  const MutexLock lock(mutex_);
  sizes_[name].synced = sizes_[name].written;
}

std::optional<std::string> FaultFileSystem::ContentOf(const std::string& name) {
  std::string content;
  if (!rocksdb::ReadFileToString(target(), name, &content).ok()) return std::nullopt;
  return content;
}

void FaultFileSystem::Changed(Change change) {
  const MutexLock lock(mutex_);
  changes_[FolderOf(change.name)].push_back(std::move(change));
}

void FaultFileSystem::SyncedFolder(const std::string& name) {
  const MutexLock lock(mutex_);
  changes_.erase(name.ends_with('/') ? name.substr(0, name.size() - 1) : name);
}

void FaultFileSystem::Undo(const Change& change) {
  ++undone_;
  const auto put = [&](const std::string& name, const std::string& content) LUWU_REQUIRES(mutex_) {
    (void)rocksdb::WriteStringToFile(target(), content, name, /*should_sync=*/true);
    sizes_[name] = {content.size(), content.size()};
  };
  if (!change.renamed_from.empty()) {
    if (const auto content = ContentOf(change.name)) put(change.renamed_from, *content);
  }
  if (change.before) {
    put(change.name, *change.before);
    return;
  }
  target()->DeleteFile(change.name, IOOptions(), nullptr).PermitUncheckedError();
  sizes_.erase(change.name);
}

void FaultFileSystem::Tear(const std::string& name, Sizes* sizes, std::mt19937_64* random) {
  if (sizes->written == sizes->synced) return;
  uint64_t keep = sizes->synced;
  if ((*random)() % 2 == 0) keep += (*random)() % (sizes->written - sizes->synced);
  std::optional<std::string> content = ContentOf(name);
  if (!content) return;
  content->resize(std::min<uint64_t>(keep, content->size()));
  const bool holes = (*random)() % 2 == 0;
  for (uint64_t at = sizes->synced; holes && at < content->size(); at = (at / 512 + 1) * 512) {
    const uint64_t bytes = std::min<uint64_t>((at / 512 + 1) * 512, content->size()) - at;
    if ((*random)() % 2 == 0) content->replace(at, bytes, bytes, '\0');
  }
  (void)rocksdb::WriteStringToFile(target(), *content, name, /*should_sync=*/true);
  *sizes = {content->size(), content->size()};
}

void FaultFileSystem::LosePower(std::mt19937_64* random) {
  const MutexLock lock(mutex_);
  for (auto& [name, sizes] : sizes_) Tear(name, &sizes, random);
  for (auto& [folder, changes] : changes_) {
    const uint64_t lost = (*random)() % (changes.size() + 1);
    for (uint64_t i = 0; i < lost; ++i) Undo(changes[changes.size() - 1 - i]);
  }
  changes_.clear();
}

IOStatus FaultFileSystem::NewWritableFile(const std::string& name, const FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* file,
                                          IODebugContext* debug) {
  IOStatus status = Check(Op::kCreate, name);
  std::unique_ptr<rocksdb::FSWritableFile> plain;
  const bool is_new = !target()->FileExists(name, IOOptions(), nullptr).ok();
  if (status.ok()) status = target()->NewWritableFile(name, options, &plain, debug);
  if (!status.ok()) return status;
  if (is_new) Changed({name, std::nullopt, ""});
  {
    const MutexLock lock(mutex_);
    sizes_[name] = Sizes();
  }
  *file = std::make_unique<FaultWritable>(this, name, std::move(plain));
  return status;
}

IOStatus FaultFileSystem::NewRandomAccessFile(const std::string& name, const FileOptions& options,
                                              std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                              IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSRandomAccessFile> plain;
  IOStatus status = target()->NewRandomAccessFile(name, options, &plain, debug);
  if (status.ok()) *file = std::make_unique<FaultReadable>(this, name, std::move(plain));
  return status;
}

IOStatus FaultFileSystem::RenameFile(const std::string& from, const std::string& to,
                                     const IOOptions& options, IODebugContext* debug) {
  IOStatus status = Check(Op::kRename, from);
  const std::optional<std::string> before = ContentOf(to);
  if (status.ok()) status = target()->RenameFile(from, to, options, debug);
  if (!status.ok()) return status;
  Changed({to, before, from});
  const MutexLock lock(mutex_);
  if (const auto found = sizes_.find(from); found != sizes_.end()) {
    sizes_[to] = found->second;
    sizes_.erase(from);
  }
  return status;
}

IOStatus FaultFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                     IODebugContext* debug) {
  IOStatus status = Check(Op::kDelete, name);
  const std::optional<std::string> before = ContentOf(name);
  if (status.ok()) status = target()->DeleteFile(name, options, debug);
  if (!status.ok()) return status;
  Changed({name, before, ""});
  const MutexLock lock(mutex_);
  sizes_.erase(name);
  return status;
}

IOStatus FaultFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                       std::unique_ptr<rocksdb::FSDirectory>* folder,
                                       IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSDirectory> plain;
  IOStatus status = target()->NewDirectory(name, options, &plain, debug);
  if (status.ok()) *folder = std::make_unique<FaultDirectory>(this, name, std::move(plain));
  return status;
}

}  // namespace luwu::fakes
