// What a worker says of itself when it opens a session, and what is known of it.
#pragma once

#include <cstdint>
#include <string>

namespace luwu {

struct WorkerIdentity {
  uint32_t rank = 0;
  uint64_t restart_count = 0;
  std::string host;
  uint32_t pid = 0;
  // The identity of [[access]] that its certificate shows, not what it says; empty: none is asked.
  std::string owner = {};
};

// "rank 1 (host gpu-7, pid 4242)".
std::string DescribeWorker(const WorkerIdentity& identity);

}  // namespace luwu
