#include "tests/fakes/fault_file_system.h"

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

void FaultFileSystem::LosePower(std::mt19937_64* random) {
  const MutexLock lock(mutex_);
  for (auto& [name, sizes] : sizes_) {
    if (sizes.written == sizes.synced) continue;
    uint64_t keep = sizes.synced;
    if ((*random)() % 2 == 0) keep += (*random)() % (sizes.written - sizes.synced);
    std::string content;
    if (!rocksdb::ReadFileToString(target(), name, &content).ok()) continue;
    content.resize(std::min<uint64_t>(keep, content.size()));
    (void)rocksdb::WriteStringToFile(target(), content, name, /*should_sync=*/true);
    sizes = {content.size(), content.size()};
  }
}

IOStatus FaultFileSystem::NewWritableFile(const std::string& name, const FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* file,
                                          IODebugContext* debug) {
  IOStatus status = Check(Op::kCreate, name);
  std::unique_ptr<rocksdb::FSWritableFile> plain;
  if (status.ok()) status = target()->NewWritableFile(name, options, &plain, debug);
  if (!status.ok()) return status;
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
  if (status.ok()) status = target()->RenameFile(from, to, options, debug);
  if (!status.ok()) return status;
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
  if (status.ok()) status = target()->DeleteFile(name, options, debug);
  if (!status.ok()) return status;
  const MutexLock lock(mutex_);
  sizes_.erase(name);
  return status;
}

}  // namespace luwu::fakes
