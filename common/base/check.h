// CHECK for our own invariants, on in production: a broken invariant must stop the process before
// it can damage weights. Never use it on peer, disk or caller input; those return a Status.
#pragma once

namespace luwu {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);

}  // namespace luwu

#define LUWU_CHECK(condition, message)                              \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::luwu::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
