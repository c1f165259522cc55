#include "server/persist/patient_files.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace luwu::persist {
namespace {

using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr uint64_t kStepBytes = 256 * kKiB;  // set aside at once
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

// Values of the engine `rocksdb_values`: they wait, so that there is space for what ends them.
bool IsPayload(const std::string& name) { return name.ends_with(".blob"); }

class PatientWritable final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  PatientWritable(std::unique_ptr<FSWritableFile> target, std::string name, NodeState* state)
      : FSWritableFileOwnerWrapper(std::move(target)), name_(std::move(name)), state_(state) {}

  // RocksDB would set aside the size of a whole log at once.
  void PrepareWrite(size_t, size_t, const IOOptions&, IODebugContext*) override {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const IOStatus room = MakeRoom(size_ + data.size(), options, debug);
    return room.ok() ? Count(data, target()->Append(data, options, debug)) : room;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    const IOStatus room = MakeRoom(size_ + data.size(), options, debug);
    return room.ok() ? Count(data, target()->Append(data, options, info, debug)) : room;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    const IOStatus room = MakeRoom(offset + data.size(), options, debug);
    if (!room.ok()) return room;
    const IOStatus status = target()->PositionedAppend(data, offset, options, debug);
    if (status.ok()) size_ = offset + data.size();
    return status;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo& info,
                            IODebugContext* debug) override {
    const IOStatus room = MakeRoom(offset + data.size(), options, debug);
    if (!room.ok()) return room;
    const IOStatus status = target()->PositionedAppend(data, offset, options, info, debug);
    if (status.ok()) size_ = offset + data.size();
    return status;
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    size_ = size;
    return target()->Truncate(size, options, debug);
  }
  // What was set aside and not needed goes back.
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    if (reserved_ != kAll && reserved_ > size_) {
      target()->Truncate(size_, options, debug).PermitUncheckedError();
    }
    return target()->Close(options, debug);
  }

 private:
  IOStatus Count(const Slice& data, IOStatus status) {
    if (status.ok()) size_ += data.size();
    return status;
  }

  IOStatus MakeRoom(uint64_t end, const IOOptions& options, IODebugContext* debug) {
    if (end <= reserved_) return IOStatus::OK();
    const uint64_t wanted = std::max(end - reserved_, kStepBytes);
    const auto reserve = [&]() -> Status {
      const IOStatus status = target()->Allocate(reserved_, wanted, options, debug);
      if (status.IsNoSpace()) {
        return Error(ErrorCode::kResourceExhausted, "setting {} aside for {}: {}",
                     HumanBytes(wanted), name_, status.ToString());
      }
      reserved_ = status.ok() ? reserved_ + wanted : kAll;  // not possible here: does without
      return OkStatus();
    };
    const auto reserve_or_release = [&] {
      const Status status = reserve();
      const bool more = !status.ok() && !IsPayload(name_) && state_->ReleaseReserve(wanted);
      return more ? reserve() : status;
    };
    Status status = reserve_or_release();
    if (!status.ok()) status = state_->RetryWhileFull(reserve_or_release);
    return status.ok() ? IOStatus::OK() : IOStatus::Aborted(MessageOf(status));
  }

  const std::string name_;
  NodeState* const state_;
  uint64_t size_ = 0;
  uint64_t reserved_ = 0;
};

class PatientFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  PatientFileSystem(std::shared_ptr<rocksdb::FileSystem> target, NodeState* state)
      : FileSystemWrapper(std::move(target)), state_(state) {}
  const char* Name() const override { return "LuwuPatient"; }

  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<FSWritableFile>* file, IODebugContext* debug) override {
    std::unique_ptr<FSWritableFile> plain;
    IOStatus status = target()->NewWritableFile(name, options, &plain, debug);
    if (status.IsNoSpace() && !IsPayload(name) && state_->ReleaseReserveForFile(kStepBytes))
      status = target()->NewWritableFile(name, options, &plain, debug);
    if (status.ok()) *file = std::make_unique<PatientWritable>(std::move(plain), name, state_);
    return status;
  }

 private:
  NodeState* const state_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> PatientFiles(std::shared_ptr<rocksdb::FileSystem> target,
                                                  NodeState* state) {
  return std::make_shared<PatientFileSystem>(std::move(target), state);
}

}  // namespace luwu::persist
