// Inside of the fake GPU: streams with queues, one thread that runs them, memory. Used by
// fake_cuda.cc only, which is the driver's functions on top.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/src/device/cuda_driver.h"

namespace luwu::client::cuda {
struct StreamObject {
  struct Command {
    std::function<void()> run;         // empty: a wait
    EventObject* waits_for = nullptr;  // with the record that counts
    uint64_t record = 0;
    const void* pinned = nullptr;  // host memory that it touches
  };
  std::deque<Command> commands;
  bool held = false;
  bool callers = false;
};
struct EventObject {
  uint64_t recorded = 0;        // records asked for
  std::set<uint64_t> happened;  // those that have run
  int late_queries = 0;         // that still say no
};
struct ContextObject {
  int device = 0;
};
struct ModuleObject {};
struct FunctionObject {
  bool pack = false;
  int source = 0;
  int target = 0;
};
}  // namespace luwu::client::cuda

namespace luwu::testing {

class FakeMachine {
 public:
  static FakeMachine& Get();

  void Reset(uint64_t seed, int devices);

  // Host address of GPU memory; null and a violation when [address, +bytes) is not one allocation.
  uint8_t* Gpu(client::cuda::Address address, uint64_t bytes);
  client::cuda::Address AllocateGpu(uint64_t bytes, int device);
  bool FreeGpu(client::cuda::Address address);
  // -1: not GPU memory.
  int DeviceOf(client::cuda::Address address);
  void* AllocatePinned(uint64_t bytes);
  bool FreePinned(void* memory);
  void CheckPinned(const void* memory, uint64_t bytes, const char* what);

  client::cuda::Stream AddStream();
  bool RemoveStream(client::cuda::Stream stream);
  client::cuda::Event AddEvent();
  bool RemoveEvent(client::cuda::Event event);
  // Null is the default stream.
  client::cuda::StreamObject* Find(client::cuda::Stream stream);
  void Enqueue(client::cuda::StreamObject* stream, client::cuda::StreamObject::Command command);
  void Settle(std::unique_lock<std::mutex>& lock, client::cuda::StreamObject* stream);

  uint64_t Pending() const;
  void Violation(const std::string& text) { violations.push_back(text); }

  // Guards everything; commands run with it held.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> violations;
  std::map<std::string, std::pair<int, client::cuda::Result>> failures;  // calls to go, result
  std::set<client::cuda::EventObject*> events;
  std::mt19937_64 random;
  int devices = 1;
  uint64_t pinned_bytes = 0;
  uint64_t gpu_bytes = 0;

 private:
  FakeMachine();
  ~FakeMachine();
  struct Block {
    uint64_t bytes = 0;
    int device = 0;
    std::vector<uint8_t> memory;
  };
  void Run();
  client::cuda::StreamObject* Choose();

  client::cuda::StreamObject default_stream_;
  std::vector<std::unique_ptr<client::cuda::StreamObject>> streams_;
  std::map<client::cuda::Address, Block> blocks_;
  std::map<uintptr_t, std::vector<uint8_t>> pinned_;
  std::vector<std::unique_ptr<client::cuda::EventObject>> all_events_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace luwu::testing
