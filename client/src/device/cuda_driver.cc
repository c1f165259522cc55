#include "client/src/device/cuda_driver.h"

#include <dlfcn.h>

#include <bit>
#include <string>
#include <type_traits>

namespace luwu::client::cuda {
namespace {

struct Loaded {
  Driver driver = {};
  Status status;
};

Status Fill(Driver* driver) {
  // Never closed: streams and memory of this process may be in use until its end.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(ErrorCode::kUnsupported,
                 "this host has no CUDA driver ({}); GPU memory cannot be used here", ::dlerror());
  }
  std::string missing;
  ForEachFunction(*driver, [&](const char* symbol, auto& function) {
    void* const found = ::dlsym(library, symbol);
    function = std::bit_cast<std::remove_reference_t<decltype(function)>>(found);
    if (found == nullptr && missing.empty()) missing = symbol;
  });
  if (!missing.empty()) {
    return Error(ErrorCode::kUnsupported, "the CUDA driver of this host is too old: it has no {}",
                 missing);
  }
  const Result result = driver->Init(0);
  int count = 0;
  if (result == kNoDevice ||
      (result == kSuccess && driver->DeviceGetCount(&count) == kSuccess && count == 0)) {
    return Error(ErrorCode::kUnsupported,
                 "the CUDA driver finds no GPU in this process; see CUDA_VISIBLE_DEVICES");
  }
  if (result == kSuccess) return OkStatus();
  const Status why = ToStatus(*driver, result, "cuInit");
  return Error(ErrorCode::kUnsupported, "the CUDA driver of this host does not start: {}",
               MessageOf(why));
}

}  // namespace

StatusOr<const Driver*> LoadDriver() {
  static const Loaded loaded = [] {
    Loaded made;
    made.status = Fill(&made.driver);
    return made;
  }();
  RETURN_IF_ERROR(loaded.status);
  return &loaded.driver;
}

Status ToStatus(const Driver& driver, Result result, const char* what) {
  if (result == kSuccess) return OkStatus();
  const char* name = nullptr;
  if (driver.GetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (result == kOutOfMemory) {
    return Error(ErrorCode::kResourceExhausted, "{}: {} ({})", what, name, result);
  }
  return Error(ErrorCode::kState,
               "{}: {} ({}); if CUDA reports the same elsewhere, the process's GPU context is "
               "broken: start the process again",
               what, name, result);
}

}  // namespace luwu::client::cuda
