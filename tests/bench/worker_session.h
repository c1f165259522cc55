// The C ABI as a bench worker uses it: whole layers in the wire's dtype, every error with the
// library's text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/memory.h"
#include "common/base/status.h"
#include "luwu/luwu.h"
#include "tests/bench/layer_table.h"

namespace luwu::bench {

struct WorkerPlace {
  uint32_t rank = 0;
  std::string endpoints;
  std::string transport;  // "auto", "shm", "tcp"
  uint32_t connections = 0;
};

struct TransferCounts {
  uint64_t fetched_bytes = 0;
  uint64_t pushed_bytes = 0;
};

class WorkerSession {
 public:
  WorkerSession() = default;
  ~WorkerSession();
  WorkerSession(const WorkerSession&) = delete;
  WorkerSession& operator=(const WorkerSession&) = delete;

  Status Open(const BenchJob& job, const WorkerPlace& place);
  Status Close();
  Status FinishLoad();
  Status WaitLoaded();
  Status Begin(uint64_t step);
  // An outcome other than applied is an error here.
  Status Commit(uint64_t step);
  Status CloseAbsent(uint32_t layer);
  Status StartPush(uint32_t layer, const Mapping& gradient, luwu_op* op);
  Status StartFetch(uint32_t layer, uint64_t version, const Mapping& target, luwu_op* op);
  // The first `elements` of a layer, on the calling thread.
  Status FetchStart(uint32_t layer, uint64_t version, uint64_t elements, const Mapping& target);
  // Appends the address of every piece.
  Status View(uint32_t layer, uint64_t version, std::vector<const void*>* addresses);
  Status Wait(luwu_op op);
  StatusOr<TransferCounts> Counts() const;

 private:
  luwu_segment WholeLayer(uint32_t layer, const Mapping& memory) const;

  BenchJob job_;
  luwu_session session_ = 0;
  std::vector<luwu_view_piece> pieces_;
};

}  // namespace luwu::bench
