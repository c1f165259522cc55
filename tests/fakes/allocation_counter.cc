#include "tests/fakes/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local bool t_counting = false;
thread_local uint64_t t_allocations = 0;

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (t_counting) ++t_allocations;
  return std::malloc(bytes);
}
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace luwu::testing {

void StartCountingAllocations() {
  t_allocations = 0;
  t_counting = true;
}

uint64_t StopCountingAllocations() {
  t_counting = false;
  return t_allocations;
}

}  // namespace luwu::testing
