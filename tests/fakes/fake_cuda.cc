#include "tests/fakes/fake_cuda.h"

#include <cstdio>
#include <cstring>

#include "client/src/device/kernel_twins.h"
#include "tests/fakes/fake_cuda_machine.h"

namespace luwu::testing {
namespace {

using client::cuda::Address;
using client::cuda::Context;
using client::cuda::ContextObject;
using client::cuda::Driver;
using client::cuda::Event;
using client::cuda::Function;
using client::cuda::FunctionObject;
using client::cuda::kAttributeMemoryType;
using client::cuda::kInvalidValue;
using client::cuda::kMemoryTypeDevice;
using client::cuda::kNotReady;
using client::cuda::kOutOfMemory;
using client::cuda::kStreamNonBlocking;
using client::cuda::kSuccess;
using client::cuda::Module;
using client::cuda::ModuleObject;
using client::cuda::Ordinal;
using client::cuda::Result;
using client::cuda::Stream;
using client::cuda::StreamObject;

constexpr Result kInvalidHandle = 400;
constexpr Result kInvalidContext = 201;
constexpr int kLateQueriesMax = 3;

thread_local std::vector<Context> current;
ContextObject contexts[8];

FakeMachine& Machine() { return FakeMachine::Get(); }

// The lock of the machine for one driver call, and whether the call fails by order.
class Call {
 public:
  explicit Call(const char* name, bool needs_context = true) : lock_(Machine().mutex) {
    if (needs_context && current.empty()) {
      Machine().Violation(std::string(name) + " without a current context");
      result_ = kInvalidContext;
    }
    const auto ordered = Machine().failures.find(name);
    if (ordered != Machine().failures.end() && ordered->second.first-- <= 0) {
      result_ = ordered->second.second;
      Machine().failures.erase(ordered);
    }
  }
  bool fails() const { return result_ != kSuccess; }
  Result result() const { return result_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
  Result result_ = kSuccess;
};

Result Init(unsigned) { return Call("cuInit", false).result(); }
Result DriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
Result GetErrorName(Result result, const char** name) {
  *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == 700        ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                 : "CUDA_ERROR_OF_THE_FAKE";
  return kSuccess;
}
Result DeviceGetCount(int* count) {
  *count = Machine().devices;
  return kSuccess;
}
Result DeviceGetName(char* name, int capacity, Ordinal device) {
  const Call call("cuDeviceGetName", false);
  std::snprintf(name, static_cast<size_t>(capacity), "fake GPU %d", device);
  return call.result();
}
Result DevicePrimaryCtxRetain(Context* context, Ordinal device) {
  const Call call("cuDevicePrimaryCtxRetain", false);
  contexts[device].device = device;
  *context = &contexts[device];
  return call.result();
}
Result CtxPushCurrent(Context context) {
  current.push_back(context);
  return kSuccess;
}
Result CtxPopCurrent(Context* context) {
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
Result PointerGetAttribute(void* data, int attribute, Address pointer) {
  const Call call("cuPointerGetAttribute", false);
  const int device = Machine().DeviceOf(pointer);
  if (device < 0) return kInvalidValue;
  const uint32_t value =
      attribute == kAttributeMemoryType ? kMemoryTypeDevice : static_cast<uint32_t>(device);
  std::memcpy(data, &value, sizeof value);
  return call.result();
}

Result StreamCreate(Stream* stream, unsigned flags) {
  const Call call("cuStreamCreate");
  if (flags != kStreamNonBlocking) Machine().Violation("a stream that the default stream blocks");
  if (!call.fails()) *stream = Machine().AddStream();
  return call.result();
}
Result StreamDestroy(Stream stream) {
  const Call call("cuStreamDestroy");
  return Machine().RemoveStream(stream) ? call.result() : kInvalidHandle;
}
Result StreamSynchronize(Stream stream) {
  Call call("cuStreamSynchronize");
  StreamObject* const found = Machine().Find(stream);
  if (found == nullptr) return kInvalidHandle;
  if (found->callers || stream == nullptr) Machine().Violation("the host waits for the caller");
  Machine().Settle(call.lock(), found);
  return call.result();
}
Result StreamWaitEvent(Stream stream, Event event, unsigned) {
  const Call call("cuStreamWaitEvent");
  StreamObject* const found = Machine().Find(stream);
  if (call.fails()) return call.result();
  if (found == nullptr || Machine().events.count(event) == 0) return kInvalidHandle;
  StreamObject::Command command;
  command.waits_for = event;  // one that was never recorded holds nobody up
  command.record = event->recorded;
  Machine().Enqueue(found, std::move(command));
  return kSuccess;
}
Result EventCreate(Event* event, unsigned) {
  const Call call("cuEventCreate");
  if (!call.fails()) *event = Machine().AddEvent();
  return call.result();
}
Result EventDestroy(Event event) {
  const Call call("cuEventDestroy");
  return Machine().RemoveEvent(event) ? call.result() : kInvalidHandle;
}
Result EventRecord(Event event, Stream stream) {
  const Call call("cuEventRecord");
  StreamObject* const found = Machine().Find(stream);
  if (call.fails()) return call.result();
  if (found == nullptr || Machine().events.count(event) == 0) return kInvalidHandle;
  const uint64_t record = ++event->recorded;
  StreamObject::Command command;
  command.run = [event, record] {
    event->happened.insert(record);
    event->late_queries = static_cast<int>(Machine().random() % (kLateQueriesMax + 1));
  };
  Machine().Enqueue(found, std::move(command));
  return kSuccess;
}
Result EventQuery(Event event) {
  const Call call("cuEventQuery");
  if (call.fails()) return call.result();
  if (Machine().events.count(event) == 0) return kInvalidHandle;
  if (event->recorded != 0 && event->happened.count(event->recorded) == 0) return kNotReady;
  return event->late_queries-- > 0 ? kNotReady : kSuccess;
}

Result MemHostAlloc(void** memory, size_t bytes, unsigned) {
  const Call call("cuMemHostAlloc");
  if (!call.fails()) *memory = Machine().AllocatePinned(bytes);
  return call.result();
}
Result MemFreeHost(void* memory) {
  const Call call("cuMemFreeHost");
  return Machine().FreePinned(memory) ? call.result() : kInvalidValue;
}
Result MemAlloc(Address* address, size_t bytes) {
  const Call call("cuMemAlloc");
  if (!call.fails()) *address = Machine().AllocateGpu(bytes, current.back()->device);
  return call.result();
}
Result MemFree(Address address) {
  const Call call("cuMemFree");
  return Machine().FreeGpu(address) ? call.result() : kInvalidValue;
}

// Queues what touches `bytes` at a GPU address.
Result Queue(const char* name, Stream stream, const void* pinned, std::function<void()> run) {
  const Call call(name);
  StreamObject* const found = Machine().Find(stream);
  if (call.fails()) return call.result();
  if (found == nullptr) return kInvalidHandle;
  StreamObject::Command command;
  command.run = std::move(run);
  command.pinned = pinned;
  Machine().Enqueue(found, std::move(command));
  return kSuccess;
}
Result MemcpyHtoDAsync(Address target, const void* source, size_t bytes, Stream stream) {
  return Queue("cuMemcpyHtoDAsync", stream, source, [=] {
    Machine().CheckPinned(source, bytes, "copy to the GPU");
    uint8_t* const gpu = Machine().Gpu(target, bytes);
    if (gpu != nullptr) std::memcpy(gpu, source, bytes);
  });
}
Result MemcpyDtoHAsync(void* target, Address source, size_t bytes, Stream stream) {
  return Queue("cuMemcpyDtoHAsync", stream, target, [=] {
    Machine().CheckPinned(target, bytes, "copy to the host");
    const uint8_t* const gpu = Machine().Gpu(source, bytes);
    if (gpu != nullptr) std::memcpy(target, gpu, bytes);
  });
}
Result MemsetD8Async(Address target, unsigned char value, size_t bytes, Stream stream) {
  return Queue("cuMemsetD8Async", stream, nullptr, [=] {
    uint8_t* const gpu = Machine().Gpu(target, bytes);
    if (gpu != nullptr) std::memset(gpu, value, bytes);
  });
}

Result ModuleLoadData(Module* module, const void*) {
  static ModuleObject only;
  const Call call("cuModuleLoadData");
  *module = &only;
  return call.result();
}
Result ModuleGetFunction(Function* function, Module, const char* name) {
  static std::map<std::string, std::unique_ptr<FunctionObject>> functions;
  const Call call("cuModuleGetFunction");
  FunctionObject made;
  char kind[16] = "";
  if (std::sscanf(name, "luwu_%15[a-z]_%d_%d", kind, &made.source, &made.target) != 3) {
    return 500;  // CUDA_ERROR_NOT_FOUND
  }
  made.pack = std::string(kind) == "pack";
  auto& known = functions[name];
  if (known == nullptr) known = std::make_unique<FunctionObject>(made);
  *function = known.get();
  return call.result();
}

// The twin, on the memory behind the GPU's addresses.
void RunKernel(const FunctionObject& function, Address source, Address target, uint64_t count,
               float scale, Address partials) {
  client::kernels::TwinCall twin;
  twin.source_dtype = static_cast<DType>(function.source);
  twin.target_dtype = static_cast<DType>(function.target);
  twin.count = count;
  twin.source = Machine().Gpu(source, count * DTypeBytes(twin.source_dtype));
  twin.target = Machine().Gpu(target, count * DTypeBytes(twin.target_dtype));
  if (twin.source == nullptr || twin.target == nullptr) return;
  if (!function.pack) return client::kernels::UnpackTwin(twin);
  using client::kernels::Partial;
  void* const found = Machine().Gpu(partials, client::kernels::kBlocks * sizeof(Partial));
  if (found != nullptr) client::kernels::PackTwin(twin, scale, static_cast<Partial*>(found));
}
Result LaunchKernel(Function function, unsigned grid, unsigned, unsigned, unsigned block, unsigned,
                    unsigned, unsigned, Stream stream, void** arguments, void**) {
  const auto argument = [&](int index, auto* value) {
    std::memcpy(value, arguments[index], sizeof *value);  // they are taken at the launch
  };
  Address source = 0;
  Address target = 0;
  Address partials = 0;
  uint64_t count = 0;
  float scale = 1;
  argument(0, &source);
  argument(1, &target);
  argument(2, &count);
  if (function->pack) argument(3, &scale);
  if (function->pack) argument(4, &partials);
  return Queue("cuLaunchKernel", stream, nullptr, [=, function = *function] {
    if (grid != client::kernels::kBlocks || block != client::kernels::kThreads) {
      Machine().Violation("a kernel launched with another shape");
    }
    RunKernel(function, source, target, count, scale, partials);
  });
}

}  // namespace

const Driver& FakeCuda() {
  static const Driver driver = {Init,
                                DriverGetVersion,
                                GetErrorName,
                                DeviceGetCount,
                                DeviceGetName,
                                DevicePrimaryCtxRetain,
                                CtxPushCurrent,
                                CtxPopCurrent,
                                PointerGetAttribute,
                                StreamCreate,
                                StreamDestroy,
                                StreamSynchronize,
                                StreamWaitEvent,
                                EventCreate,
                                EventDestroy,
                                EventRecord,
                                EventQuery,
                                MemHostAlloc,
                                MemFreeHost,
                                MemAlloc,
                                MemFree,
                                MemcpyHtoDAsync,
                                MemcpyDtoHAsync,
                                MemsetD8Async,
                                ModuleLoadData,
                                ModuleGetFunction,
                                LaunchKernel};
  return driver;
}

void ResetFakeCuda(uint64_t seed, int devices) { Machine().Reset(seed, devices); }

void HoldStream(Stream stream) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  Machine().Find(stream)->held = Machine().Find(stream)->callers = true;
}
void ReleaseStream(Stream stream) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  Machine().Find(stream)->held = false;
  Machine().changed.notify_all();
}
void MarkAsCallers(Stream stream) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  Machine().Find(stream)->callers = true;
}

void FailCuda(const std::string& function, Result result, int after_calls) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  Machine().failures[function] = {after_calls, result};
}

void WriteGpu(Address address, const void* data, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  std::memcpy(Machine().Gpu(address, bytes), data, bytes);
}
void ReadGpu(Address address, void* data, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  std::memcpy(data, Machine().Gpu(address, bytes), bytes);
}

void LaunchWrite(Stream stream, Address address, std::vector<uint8_t> bytes) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  StreamObject::Command command;
  command.run = [address, bytes = std::move(bytes)] {
    std::memcpy(Machine().Gpu(address, bytes.size()), bytes.data(), bytes.size());
  };
  Machine().Enqueue(Machine().Find(stream), std::move(command));
}
void LaunchRead(Stream stream, Address address, std::vector<uint8_t>* into) {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  StreamObject::Command command;
  command.run = [address, into] {
    std::memcpy(into->data(), Machine().Gpu(address, into->size()), into->size());
  };
  Machine().Enqueue(Machine().Find(stream), std::move(command));
}

void SettleFakeCuda() {
  std::unique_lock<std::mutex> lock(Machine().mutex);
  Machine().Settle(lock, nullptr);
}

uint64_t FakeCudaPending() {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  return Machine().Pending();
}

std::vector<std::string> FakeCudaViolations() {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  return Machine().violations;
}
uint64_t FakeCudaPinnedBytes() {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  return Machine().pinned_bytes;
}
uint64_t FakeCudaGpuBytes() {
  std::lock_guard<std::mutex> lock(Machine().mutex);
  return Machine().gpu_bytes;
}

}  // namespace luwu::testing
