#include "tests/fakes/fake_cuda_machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

namespace luwu::testing {
namespace {

using client::cuda::Address;
using client::cuda::EventObject;
using client::cuda::StreamObject;

constexpr uint8_t kPoison = 0xa5;

}  // namespace

FakeMachine& FakeMachine::Get() {
  static FakeMachine machine;
  return machine;
}

FakeMachine::FakeMachine() : thread_([this] { Run(); }) {}

FakeMachine::~FakeMachine() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping_ = true;
    changed.notify_all();
  }
  thread_.join();
}

void FakeMachine::Reset(uint64_t seed, int device_count) {
  std::lock_guard<std::mutex> lock(mutex);
  random.seed(seed);
  devices = device_count;
  violations.clear();
  failures.clear();
}

// ---- memory -------------------------------------------------------------------------------------

Address FakeMachine::AllocateGpu(uint64_t bytes, int device) {
  // Addresses that fault when the host follows them.
  void* const reserved =
      ::mmap(nullptr, bytes + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto address = reinterpret_cast<Address>(reserved);
  blocks_[address] = {bytes, device, std::vector<uint8_t>(bytes, kPoison)};
  gpu_bytes += bytes;
  return address;
}

bool FakeMachine::FreeGpu(Address address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  gpu_bytes -= found->second.bytes;
  ::munmap(reinterpret_cast<void*>(address), found->second.bytes + 1);
  blocks_.erase(found);
  return true;
}

uint8_t* FakeMachine::Gpu(Address address, uint64_t bytes) {
  auto after = blocks_.upper_bound(address);
  if (after != blocks_.begin()) {
    auto& [start, block] = *std::prev(after);
    if (address - start + bytes <= block.bytes) return block.memory.data() + (address - start);
  }
  Violation("access to GPU memory that is not allocated");
  return nullptr;
}

int FakeMachine::DeviceOf(Address address) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return -1;
  const auto& [start, block] = *std::prev(after);
  return address - start < block.bytes ? block.device : -1;
}

void* FakeMachine::AllocatePinned(uint64_t bytes) {
  std::vector<uint8_t> memory(bytes, kPoison);
  void* const data = memory.data();
  pinned_[reinterpret_cast<uintptr_t>(data)] = std::move(memory);
  pinned_bytes += bytes;
  return data;
}

bool FakeMachine::FreePinned(void* memory) {
  const auto found = pinned_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == pinned_.end()) return false;
  const auto* const begin = found->second.data();
  const auto* const end = begin + found->second.size();
  const auto check = [&](const StreamObject& stream) {
    for (const StreamObject::Command& command : stream.commands) {
      const auto* const at = static_cast<const uint8_t*>(command.pinned);
      if (at != nullptr && at >= begin && at < end) Violation("pinned memory freed under a copy");
    }
  };
  check(default_stream_);
  for (const auto& stream : streams_) check(*stream);
  pinned_bytes -= found->second.size();
  pinned_.erase(found);
  return true;
}

void FakeMachine::CheckPinned(const void* memory, uint64_t bytes, const char* what) {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto after = pinned_.upper_bound(at);
  if (after != pinned_.begin()) {
    const auto& [start, block] = *std::prev(after);
    if (at - start + bytes <= block.size()) return;
  }
  Violation(std::string(what) + ": host memory that is not pinned");
}

// ---- streams and events -------------------------------------------------------------------------

client::cuda::Stream FakeMachine::AddStream() {
  streams_.push_back(std::make_unique<StreamObject>());
  return streams_.back().get();
}

bool FakeMachine::RemoveStream(client::cuda::Stream stream) {
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& each) { return each.get() == stream; });
  if (found == streams_.end()) return false;
  if (!stream->commands.empty()) Violation("stream destroyed with work on it");
  streams_.erase(found);
  return true;
}

client::cuda::Event FakeMachine::AddEvent() {
  all_events_.push_back(std::make_unique<EventObject>());
  events.insert(all_events_.back().get());
  return all_events_.back().get();
}

bool FakeMachine::RemoveEvent(client::cuda::Event event) { return events.erase(event) == 1; }

StreamObject* FakeMachine::Find(client::cuda::Stream stream) {
  if (stream == nullptr) return &default_stream_;
  for (const auto& each : streams_) {
    if (each.get() == stream) return stream;
  }
  Violation("unknown stream");
  return nullptr;
}

void FakeMachine::Enqueue(StreamObject* stream, StreamObject::Command command) {
  stream->commands.push_back(std::move(command));
  changed.notify_all();
}

void FakeMachine::Settle(std::unique_lock<std::mutex>& lock, StreamObject* stream) {
  changed.wait(lock, [&] {
    if (stream != nullptr) return stream->commands.empty();
    return default_stream_.commands.empty() &&
           std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& each) { return each->commands.empty(); });
  });
}

uint64_t FakeMachine::Pending() const {
  uint64_t pending = 0;
  for (const auto& stream : streams_) {
    if (!stream->callers) pending += stream->commands.size();
  }
  return pending;
}

// Any stream whose next command may run.
StreamObject* FakeMachine::Choose() {
  std::vector<StreamObject*> ready;
  const auto look = [&](StreamObject* stream) {
    if (stream->held || stream->commands.empty()) return;
    const StreamObject::Command& next = stream->commands.front();
    if (next.waits_for == nullptr || next.record == 0 ||
        next.waits_for->happened.count(next.record) != 0) {
      ready.push_back(stream);
    }
  };
  look(&default_stream_);
  for (const auto& stream : streams_) look(stream.get());
  return ready.empty() ? nullptr : ready[random() % ready.size()];
}

void FakeMachine::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (!stopping_) {
    // Now and then it dawdles: then the host runs far ahead.
    if (random() % 3 == 0) {
      changed.wait_for(lock, std::chrono::microseconds(random() % 300));
    }
    StreamObject* const stream = Choose();
    if (stream == nullptr) {
      if (!stopping_) changed.wait_for(lock, std::chrono::milliseconds(50));
      continue;
    }
    StreamObject::Command command = std::move(stream->commands.front());
    stream->commands.pop_front();
    if (command.run) command.run();
    changed.notify_all();
  }
}

}  // namespace luwu::testing
