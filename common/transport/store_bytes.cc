#include "common/transport/store_bytes.h"

#include <atomic>
#include <cstring>

namespace luwu::transport {
namespace {

template <typename T>
bool Aligned(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0;
}

template <typename T>
void StoreWord(std::byte* to, const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  std::atomic_ref<T>(*reinterpret_cast<T*>(to)).store(value, std::memory_order_release);
}

template <typename T>
void LoadWord(std::byte* to, const std::byte* from) {
  // The reference only loads; atomic_ref of a const type does not exist in C++20.
  auto* word = reinterpret_cast<T*>(const_cast<std::byte*>(from));
  const T value = std::atomic_ref<T>(*word).load(std::memory_order_acquire);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

void StoreBytes(std::byte* to, ConstByteSpan from) {
  const std::byte* source = from.data();
  uint64_t left = from.size();
  if (left > kWordwiseBytesMax) {
    std::memcpy(to, source, left);
    return;
  }
  if (Aligned<uint64_t>(to)) {
    for (; left >= 8; left -= 8, to += 8, source += 8) StoreWord<uint64_t>(to, source);
  }
  if (Aligned<uint32_t>(to)) {
    for (; left >= 4; left -= 4, to += 4, source += 4) StoreWord<uint32_t>(to, source);
  }
  if (left > 0) std::memcpy(to, source, left);
}

void LoadBytes(std::byte* to, ConstByteSpan from) {
  const std::byte* source = from.data();
  if (from.size() == 8 && Aligned<uint64_t>(source)) {
    LoadWord<uint64_t>(to, source);
  } else if (from.size() == 4 && Aligned<uint32_t>(source)) {
    LoadWord<uint32_t>(to, source);
  } else if (!from.empty()) {
    std::memcpy(to, source, from.size());
  }
}

#if defined(__SANITIZE_THREAD__)  // g++ knows no fences under this sanitizer
void FenceBeforeAnnouncing() {}
void FenceAfterAnnouncement() {}
#else
void FenceBeforeAnnouncing() { std::atomic_thread_fence(std::memory_order_release); }
void FenceAfterAnnouncement() { std::atomic_thread_fence(std::memory_order_acquire); }
#endif

}  // namespace luwu::transport
