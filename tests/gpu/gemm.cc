#include "tests/gpu/gemm.h"

namespace luwu::testing {
namespace {

// Values of cuBLAS's headers.
constexpr int kBFloat16 = 14;     // CUDA_R_16BF
constexpr int kComputeFp32 = 68;  // CUBLAS_COMPUTE_32F
constexpr int kDefault = -1;      // CUBLAS_GEMM_DEFAULT
constexpr int kPlain = 0;         // CUBLAS_OP_N

uint64_t BytesFor(int size) { return uint64_t(size) * uint64_t(size) * 2; }

void* LoadCublas() {
  for (const char* const name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}) {
    if (void* const found = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return found;
  }
  throw std::runtime_error("no libcublas.so.11 to .13 on the loader's path");
}

}  // namespace

Gemm::Gemm(const Gpu& gpu, client::cuda::Stream stream, int size)
    : size_(size), a_(gpu, BytesFor(size)), b_(gpu, BytesFor(size)), c_(gpu, BytesFor(size)) {
  for (const GpuMemory* const each : {&a_, &b_, &c_}) {
    gpu.Check(gpu.driver().MemsetD8Async(each->address(), 0, BytesFor(size), stream),
              "cuMemsetD8Async");
  }
  void* const library = LoadCublas();
  const auto create = reinterpret_cast<Create>(::dlsym(library, "cublasCreate_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(::dlsym(library, "cublasSetStream_v2"));
  gemm_ = reinterpret_cast<GemmEx>(::dlsym(library, "cublasGemmEx"));
  if (create == nullptr || set_stream == nullptr || gemm_ == nullptr) {
    throw std::runtime_error("cuBLAS lacks a function");
  }
  if (create(&handle_) != 0 || set_stream(handle_, stream) != 0) {
    throw std::runtime_error("cuBLAS does not start");
  }
}

void Gemm::Launch() const {
  const float one = 1.0f;
  const float zero = 0.0f;
  const int status = gemm_(handle_, kPlain, kPlain, size_, size_, size_, &one, a_.pointer(),
                           kBFloat16, size_, b_.pointer(), kBFloat16, size_, &zero, c_.pointer(),
                           kBFloat16, size_, kComputeFp32, kDefault);
  if (status != 0) throw std::runtime_error("cublasGemmEx: " + std::to_string(status));
}

}  // namespace luwu::testing
