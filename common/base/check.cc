#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace luwu {

void CheckFailed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "luwu: invariant broken at %s:%d: %s (%s)\n", file, line, condition,
               message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace luwu
