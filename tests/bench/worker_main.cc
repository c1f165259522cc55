// luwu-bench-worker: started by luwu-bench with the number of its end of the link.
#include <cstdlib>

#include "tests/bench/worker.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;  // not for people
  luwu::bench::RunWorker(luwu::UniqueFd(std::atoi(argv[1])));
  return 0;
}
