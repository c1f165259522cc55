// LuWu client library: a header-only C++17 layer over luwu.h. Handles close themselves, errors are
// exceptions of one type that carries the luwu_status, and schemas are values. What the functions
// mean is said in luwu.h.
//
//   luwu::cxx::JobSpec job{"demo", 1, {{"h.0", {{"h.0.w", {64, 64}}}}}};
//   luwu::cxx::Session session({.endpoints = "127.0.0.1:7601", .job = job});
//   session.load({0, 0}, weights.data(), weights.size());
//   session.finish_load();
//   session.begin_step(0, {luwu::cxx::adamw(1e-3)});
//   session.fetch(0, 0, {luwu::cxx::segment(weights.data(), weights.size())});
//   session.push(0, {luwu::cxx::segment(gradient.data(), gradient.size())}, LUWU_PUSH_CLOSE);
//   session.commit(0);
#ifndef LUWU_LUWU_HPP_
#define LUWU_LUWU_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "luwu.h"
#include "schema.hpp"

namespace luwu::cxx {

constexpr uint32_t kTimeoutMs = 60'000;

// ---- arguments ---------------------------------------------------------------------------------

// Hyper-parameters with the defaults of torch.optim (Lion: of its paper). `max_norm` of clipping is
// set afterwards.
inline luwu_hyper hyper(double lr, double weight_decay) {
  luwu_hyper values = {};
  values.struct_size = sizeof values;
  values.lr = lr;
  values.weight_decay = weight_decay;
  return values;
}
inline luwu_hyper adamw(double lr, double weight_decay = 0.01, double beta1 = 0.9,
                        double beta2 = 0.999, double eps = 1e-8) {
  luwu_hyper values = hyper(lr, weight_decay);
  values.beta1 = beta1;
  values.beta2 = beta2;
  values.eps = eps;
  return values;
}
inline luwu_hyper adam(double lr, double weight_decay = 0, double beta1 = 0.9, double beta2 = 0.999,
                       double eps = 1e-8) {
  return adamw(lr, weight_decay, beta1, beta2, eps);
}
inline luwu_hyper sgd(double lr, double momentum = 0, double weight_decay = 0, double dampening = 0,
                      bool nesterov = false) {
  luwu_hyper values = hyper(lr, weight_decay);
  values.nesterov = nesterov;
  values.momentum = momentum;
  values.dampening = dampening;
  return values;
}
inline luwu_hyper lion(double lr, double weight_decay = 0, double beta1 = 0.9,
                       double beta2 = 0.99) {
  return adamw(lr, weight_decay, beta1, beta2, 0);
}
inline luwu_hyper adagrad(double lr, double lr_decay = 0, double weight_decay = 0,
                          double eps = 1e-10) {
  luwu_hyper values = hyper(lr, weight_decay);
  values.lr_decay = lr_decay;
  values.eps = eps;
  return values;
}

// An element of a layer, where a range begins.
struct At {
  uint32_t layer = 0;
  uint64_t offset = 0;
};

inline luwu_segment segment(void* data, luwu_dtype dtype, uint64_t count, uint64_t offset = 0) {
  return {sizeof(luwu_segment), dtype, data, offset, count};
}
inline luwu_segment segment(float* data, uint64_t count, uint64_t offset = 0) {
  return segment(data, LUWU_FLOAT32, count, offset);
}
using Segments = std::vector<luwu_segment>;

// ---- operations --------------------------------------------------------------------------------

// An asynchronous fetch or push. The memory it works on must live until it is done; the destructor
// waits for that.
class Op {
 public:
  explicit Op(luwu_op handle) : handle_(handle) {}
  Op(Op&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  Op& operator=(Op&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Op() {
    while (handle_ != 0 && luwu_wait(handle_, kTimeoutMs) == LUWU_E_DEADLINE) {
    }
  }
  // Throws the operation's error; LUWU_E_DEADLINE leaves it running.
  void wait(uint32_t timeout_ms = kTimeoutMs) {
    const int32_t status = luwu_wait(handle_, timeout_ms);
    if (status != LUWU_E_DEADLINE) handle_ = 0;
    check(status);
  }
  bool done() {
    const int32_t status = luwu_test(handle_);
    if (status == LUWU_IN_PROGRESS) return false;
    handle_ = 0;
    check(status);
    return true;
  }

 private:
  luwu_op handle_;
};

// ---- session -----------------------------------------------------------------------------------

struct Options {
  std::string endpoints = {};
  JobSpec job = {};
  uint32_t rank = 0;
  uint64_t restart_count = 0;
  luwu_transport transport = LUWU_TRANSPORT_AUTO;
  uint32_t tcp_connections = 0;
  uint32_t verify_served_crc = 0;
  uint32_t timeout_ms = 0;
  uint32_t node_timeout_ms = 0;
  bool must_train = false;
  std::string rdma = {};
  std::string tls_ca = {}, tls_certificate = {}, tls_key = {};  // PEM files; luwu.h
  std::string fault_plan = {};
};

class Session {
 public:
  explicit Session(const Options& options) {
    check(luwu_init(LUWU_ABI_VERSION));
    const CJobSpec job(options.job);
    luwu_open_options open = {};
    open.struct_size = sizeof open;
    open.rank = options.rank;
    open.endpoints = options.endpoints.c_str();
    open.job = job.get();
    open.restart_count = options.restart_count;
    open.transport = options.transport;
    open.tcp_connections = options.tcp_connections;
    open.verify_served_crc = options.verify_served_crc;
    open.timeout_ms = options.timeout_ms;
    open.node_timeout_ms = options.node_timeout_ms;
    open.must_train = options.must_train ? 1 : 0;
    open.rdma = options.rdma.c_str();  // as the paths: empty is none
    open.tls_ca = options.tls_ca.c_str();
    open.tls_certificate = options.tls_certificate.c_str();
    open.tls_key = options.tls_key.c_str();
    open.fault_plan = options.fault_plan.empty() ? nullptr : options.fault_plan.c_str();
    check(luwu_session_open(&open, &handle_));
  }
  Session(Session&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  Session& operator=(Session&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Session() {
    if (handle_ != 0) luwu_session_close(handle_);
  }
  luwu_session handle() const { return handle_; }

  void load(At at, const float* values, uint64_t count, uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_load(handle_, at.layer, at.offset, values, count, timeout_ms));
  }
  void finish_load(bool allow_missing = false, uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_finish_load(handle_, allow_missing, timeout_ms));
  }
  void wait_loaded(uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_wait_loaded(handle_, timeout_ms));
  }
  void read(At at, luwu_quantity quantity, float* values, uint64_t count,
            uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_read(handle_, at.layer, quantity, at.offset, values, count, timeout_ms));
  }

  void begin_step(uint64_t step, const std::vector<luwu_hyper>& groups,
                  uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_begin_step(handle_, step, groups.data(), uint32_t(groups.size()), timeout_ms));
  }
  luwu_commit_result commit(uint64_t step, uint32_t timeout_ms = kTimeoutMs) {
    luwu_commit_result result = {};
    result.struct_size = sizeof result;
    check(luwu_commit(handle_, step, &result, timeout_ms));
    return result;
  }

  void fetch(uint32_t layer, uint64_t version, const Segments& to,
             uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_fetch(handle_, layer, version, to.data(), uint32_t(to.size()), timeout_ms));
  }
  Op fetch_async(uint32_t layer, uint64_t version, const Segments& to,
                 uint32_t timeout_ms = kTimeoutMs) {
    luwu_op op = 0;
    check(
        luwu_fetch_async(handle_, layer, version, to.data(), uint32_t(to.size()), timeout_ms, &op));
    return Op(op);
  }
  std::vector<luwu_view_piece> view(uint32_t layer, uint64_t version,
                                    uint32_t timeout_ms = kTimeoutMs) {
    uint32_t count = 0;
    const int32_t sized = luwu_fetch_view(handle_, layer, version, nullptr, &count, timeout_ms);
    if (sized != LUWU_E_INVALID_ARGUMENT || count == 0) check(sized);
    std::vector<luwu_view_piece> pieces(count);
    check(luwu_fetch_view(handle_, layer, version, pieces.data(), &count, timeout_ms));
    return pieces;
  }

  void push(uint32_t layer, const Segments& from, uint32_t flags,
            uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_push(handle_, layer, from.data(), uint32_t(from.size()), flags, timeout_ms));
  }
  Op push_async(uint32_t layer, const Segments& from, uint32_t flags,
                uint32_t timeout_ms = kTimeoutMs) {
    luwu_op op = 0;
    check(luwu_push_async(handle_, layer, from.data(), uint32_t(from.size()), flags, timeout_ms,
                          &op));
    return Op(op);
  }
  void close_layer(uint32_t layer, uint32_t timeout_ms = kTimeoutMs) {
    check(luwu_close_layer(handle_, layer, timeout_ms));
  }

  luwu_session_info info() const {
    luwu_session_info info = {};
    info.struct_size = sizeof info;
    check(luwu_session_get_info(handle_, &info));
    return info;
  }

 private:
  luwu_session handle_ = 0;
};

// ---- job ---------------------------------------------------------------------------------------

inline void delete_job(const std::string& endpoints, const std::string& job, bool force = false,
                       uint32_t timeout_ms = kTimeoutMs) {
  check(luwu_init(LUWU_ABI_VERSION));
  check(luwu_job_delete(endpoints.c_str(), job.c_str(), force ? 1 : 0, timeout_ms));
}

}  // namespace luwu::cxx

#endif  // LUWU_LUWU_HPP_
