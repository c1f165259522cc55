// What LuWu's data plane is measured against, each as plain as it can be: memcpy, a loopback
// socket, a ring in a memfd, and a gRPC echo. They run in "agent" processes, two to a pair, one
// playing the worker's part and one the daemon's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/tensor/dtype.h"

namespace luwu::bench {

inline constexpr uint64_t kPieceBytes = 1 << 20;    // of each copy and each socket call
inline constexpr uint64_t kBufferBytes = 64 << 20;  // walked round and round
inline constexpr int kSocketBufferBytes = 256 << 10;
inline constexpr uint64_t kRingSlots = 32;
inline constexpr uint64_t kEchoBytes = 16;

// When a transfer ran, in MonotonicSeconds().
struct Interval {
  double begin = 0;
  double end = 0;
};

// ---- memory.cc --------------------------------------------------------------------------------

struct Buffers {
  Mapping source;
  Mapping target;  // zero at first
};
StatusOr<Buffers> MakeBuffers();

Interval CopyBytes(Buffers* buffers, uint64_t bytes);
// Reads every byte; the result keeps the compiler from leaving that out.
uint64_t SumBytes(ConstByteSpan bytes);

// ---- ring.cc ----------------------------------------------------------------------------------

// Lies at the start of the memfd; kRingSlots pieces follow at kRingDataOffset.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};
inline constexpr uint64_t kRingDataOffset = 4096;
inline constexpr uint64_t kRingBytes = kRingDataOffset + kRingSlots * kPieceBytes;

// What the reader does with each piece, where it lies: nothing, as a daemon that parks it; read
// it; or update weights with it as gradients, by LuWu's own kernel (plain SGD).
enum class RingUse { kNothing, kRead, kUpdate };

Interval WriteRing(const Mapping& ring, const Buffers& buffers, uint64_t bytes);
// `wire` is the element type for kUpdate; its masters and served copies lie in `buffers->target`.
Interval ReadRing(const Mapping& ring, RingUse use, DType wire, uint64_t bytes, Buffers* buffers);

// ---- socket.cc --------------------------------------------------------------------------------

StatusOr<UniqueFd> ListenLoopback(uint16_t* port);
StatusOr<UniqueFd> AcceptOne(const UniqueFd& listener);
StatusOr<UniqueFd> ConnectLoopback(uint16_t port);
StatusOr<Interval> SendBytes(const UniqueFd& socket, const Buffers& buffers, uint64_t bytes);
StatusOr<Interval> ReceiveBytes(const UniqueFd& socket, Buffers* buffers, uint64_t bytes);

// ---- echo.cc ----------------------------------------------------------------------------------

class EchoServer {
 public:
  virtual ~EchoServer() = default;
  virtual uint16_t port() const = 0;
};
StatusOr<std::unique_ptr<EchoServer>> StartEchoServer();
// Microseconds of each of `count` calls, after a warm-up.
StatusOr<std::vector<double>> EchoLatencies(uint16_t port, uint64_t count);

// ---- agent.cc ---------------------------------------------------------------------------------

// The agent's command loop; returns when the driver is gone.
void RunAgent(UniqueFd link);

}  // namespace luwu::bench
