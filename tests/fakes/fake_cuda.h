// A GPU made of threads of the host, behind the CUDA driver's functions (client/src/device/
// cuda_driver.h). It keeps what CUDA promises and nothing more: each stream runs its work in order,
// streams run in any order that events allow, copies read and write when they run and not when they
// are asked for, and an event is seen to have happened a while after it has. A wait that is missing
// shows as wrong bytes; what is against the rules is a violation (fake_cuda_violations):
// copies from or to host memory that is not pinned, memory given back while a copy of it waits,
// calls without a current context, the host waiting for a stream of the test (one that it marked),
// the driver touched by unknown handles.
//
// GPU memory cannot be read or written through its addresses: that faults, as it does with a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/src/device/cuda_driver.h"

namespace luwu::testing {

const client::cuda::Driver& FakeCuda();

// Starts again: nothing may be in use. The seed chooses the order and the delays.
void ResetFakeCuda(uint64_t seed, int devices = 1);

// Work of this stream does not start until it is released; the host must not wait for it. Streams
// are the caller's own kind from the first Hold or Mark.
void HoldStream(client::cuda::Stream stream);
void ReleaseStream(client::cuda::Stream stream);
void MarkAsCallers(client::cuda::Stream stream);

// The next calls of the driver function with this name ("cuMemHostAlloc") give `result`.
void FailCuda(const std::string& function, client::cuda::Result result, int after_calls = 0);

// GPU memory as its owner sees it, at once, beside all streams.
void WriteGpu(client::cuda::Address address, const void* data, uint64_t bytes);
void ReadGpu(client::cuda::Address address, void* data, uint64_t bytes);

// A kernel of the caller: at its turn on the stream it writes the bytes, or notes what is there.
void LaunchWrite(client::cuda::Stream stream, client::cuda::Address address,
                 std::vector<uint8_t> bytes);
void LaunchRead(client::cuda::Stream stream, client::cuda::Address address,
                std::vector<uint8_t>* into);

// Runs until all streams are empty.
void SettleFakeCuda();

// Work that has not run on streams that are not the caller's.
uint64_t FakeCudaPending();

std::vector<std::string> FakeCudaViolations();
// Bytes of pinned and of GPU memory in use now.
uint64_t FakeCudaPinnedBytes();
uint64_t FakeCudaGpuBytes();

}  // namespace luwu::testing
