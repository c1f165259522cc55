#include "common/transport/transport.h"

namespace luwu::transport {

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kShm:
      return "shm";
    case Kind::kTcp:
      return "tcp";
    case Kind::kVerbs:
      return "verbs";
  }
  return "unknown";
}

}  // namespace luwu::transport
