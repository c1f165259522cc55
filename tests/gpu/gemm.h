// A matrix product that keeps a GPU busy, from cuBLAS, which is loaded at run time: what fetches
// and pushes are measured beside. Throws std::runtime_error when there is no cuBLAS.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/gpu/gpu.h"

namespace luwu::testing {

class Gemm {
 public:
  // bf16, size x size, on `stream`.
  Gemm(const Gpu& gpu, client::cuda::Stream stream, int size);
  // Puts one product onto the stream.
  void Launch() const;
  double flops() const { return 2.0 * size_ * size_ * size_; }

 private:
  using Create = int (*)(void** handle);
  using SetStream = int (*)(void* handle, void* stream);
  using GemmEx = int (*)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
                         const void* alpha, const void* a, int a_type, int lda, const void* b,
                         int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
                         int compute_type, int algorithm);

  const int size_;
  GpuMemory a_;
  GpuMemory b_;
  GpuMemory c_;
  void* handle_ = nullptr;
  GemmEx gemm_ = nullptr;
};

}  // namespace luwu::testing
