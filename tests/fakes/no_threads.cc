// Linked into the tests that their CMakeLists.txt calls ONE_THREAD, which ThreadSanitizer therefore
// does not run: one that starts a thread all the same stops here.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs("a test marked ONE_THREAD started a thread: take the mark off\n", stderr);
  std::abort();
}
