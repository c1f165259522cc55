// luwu.hpp under a strict C++17 compiler, and its errors.
#include <luwu/luwu.hpp>

#include <cstdio>
#include <string>
#include <type_traits>

static_assert(!std::is_copy_constructible_v<luwu::cxx::Session>);
static_assert(std::is_nothrow_move_constructible_v<luwu::cxx::Session>);
static_assert(std::is_nothrow_move_constructible_v<luwu::cxx::Op>);

int main() {
  luwu::cxx::Options options;
  options.endpoints = "127.0.0.1:1";
  options.job.name = "job";
  options.job.layers = {{"layer", {{"tensor", {2, 3}}}}};
  options.node_timeout_ms = 50;
  options.timeout_ms = 100;
  try {
    luwu::cxx::Session session(options);
  } catch (const luwu::cxx::Error& error) {
    const bool right =
        error.code() == LUWU_E_NODE_LOST && std::string(error.what()).find("node lost: ") == 0;
    if (!right) std::printf("%d: %s\n", error.code(), error.what());
    return right ? 0 : 1;
  }
  std::printf("a session was opened on a port where nobody listens\n");
  return 1;
}
