// A node's storage on devices that a test can make fail: the disk under the extents and the file
// system under RocksDB, both in memory. Only identity and lock are real files.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include <rocksdb/env.h>

#include "tests/fakes/fake_disk.h"
#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/power.h"
#include "tests/unit/persist/storage_world.h"

namespace luwu::persist {

class FaultMachine {
 public:
  explicit FaultMachine(Engine engine)
      : folder_("/dev/shm"),
        options_(OptionsFor(folder_.path(), engine)),
        memory_(rocksdb::NewMemEnv(rocksdb::Env::Default())),
        files_(std::make_shared<fakes::FaultFileSystem>(memory_->GetFileSystem(), &power_)),
        env_(rocksdb::NewCompositeEnv(files_)),
        disk_(std::make_shared<fakes::FakeDisk>(&power_)) {}

  StatusOr<std::unique_ptr<NodeStorage>> Open() {
    return NodeStore::Open(options_, {disk_, env_.get(), fmt::format("boot {}", boots_)});
  }
  void LosePower(std::mt19937_64* random) {
    files_->LosePower(random);
    disk_->LosePower(random);
    ++boots_;
  }
  StorageOptions* options() { return &options_; }
  fakes::Power* power() { return &power_; }
  fakes::FaultFileSystem* files() { return files_.get(); }
  fakes::FakeDisk* disk() { return disk_.get(); }

 private:
  TestFolder folder_;
  StorageOptions options_;
  int boots_ = 1;
  fakes::Power power_;
  std::unique_ptr<rocksdb::Env> memory_;
  std::shared_ptr<fakes::FaultFileSystem> files_;
  std::unique_ptr<rocksdb::Env> env_;
  std::shared_ptr<fakes::FakeDisk> disk_;
};

// False when it has not come true within a minute.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 12'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace luwu::persist
