#include "tests/bench/worker_session.h"

namespace luwu::bench {
namespace {

constexpr uint32_t kTimeoutMs = 120'000;

Status Check(int32_t code, const char* call) {
  if (code == LUWU_OK) return OkStatus();
  return Error(static_cast<ErrorCode>(code), "{}: {}", call, luwu_last_error());
}

int32_t TransportOf(const std::string& name) {
  if (name == "shm") return LUWU_TRANSPORT_SHM;
  if (name == "tcp") return LUWU_TRANSPORT_TCP;
  return LUWU_TRANSPORT_AUTO;
}

}  // namespace

WorkerSession::~WorkerSession() {
  if (session_ != 0) luwu_session_close(session_);
}

Status WorkerSession::Open(const BenchJob& job, const WorkerPlace& place) {
  RETURN_IF_ERROR(Check(luwu_init(LUWU_ABI_VERSION), "luwu_init"));
  job_ = job;
  std::vector<luwu_tensor_spec> tensors;
  std::vector<luwu_layer_spec> layers;
  tensors.reserve(job.layers.size());
  for (const BenchLayer& layer : job.layers) {
    luwu_tensor_spec tensor = {};
    tensor.struct_size = sizeof tensor;
    tensor.name = layer.name.c_str();
    tensor.shape = &layer.elements;
    tensor.dims = 1;
    tensor.trainable = 1;
    tensors.push_back(tensor);
    luwu_layer_spec spec = {};
    spec.struct_size = sizeof spec;
    spec.tensor_count = 1;
    spec.name = layer.name.c_str();
    spec.tensors = &tensors.back();
    spec.elements = layer.elements;
    layers.push_back(spec);
  }
  luwu_job_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.world_size = job.world_size;
  spec.name = job.name.c_str();
  spec.layers = layers.data();
  spec.layer_count = static_cast<uint32_t>(layers.size());
  spec.groups = 1;
  spec.optimizer = job.adamw ? LUWU_ADAMW : LUWU_SGD;
  spec.served_dtype = static_cast<int32_t>(DTypeOf(job.wire_dtype));
  spec.gradient_dtype = spec.served_dtype;
  spec.reduction = LUWU_MEAN;
  spec.on_non_finite = job.keep_undo_state ? LUWU_NON_FINITE_SKIP : LUWU_NON_FINITE_FAIL;
  spec.keep_undo_state = job.keep_undo_state ? 1 : 0;
  spec.slots_per_worker = job.slots_per_worker;
  spec.shard_elements = job.shard_elements;
  spec.overflow_bytes = UINT64_MAX;
  luwu_open_options options = {};
  options.struct_size = sizeof options;
  options.rank = place.rank;
  options.endpoints = place.endpoints.c_str();
  options.job = &spec;
  options.transport = TransportOf(place.transport);
  options.tcp_connections = place.connections;
  options.timeout_ms = kTimeoutMs;
  return Check(luwu_session_open(&options, &session_), "luwu_session_open");
}

Status WorkerSession::Close() {
  const luwu_session session = std::exchange(session_, 0);
  return Check(luwu_session_close(session), "luwu_session_close");
}

Status WorkerSession::FinishLoad() {
  return Check(luwu_finish_load(session_, 1, kTimeoutMs), "luwu_finish_load");
}

Status WorkerSession::WaitLoaded() {
  return Check(luwu_wait_loaded(session_, kTimeoutMs), "luwu_wait_loaded");
}

Status WorkerSession::Begin(uint64_t step) {
  luwu_hyper hyper = {};
  hyper.struct_size = sizeof hyper;
  hyper.lr = 1e-3;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.999;
  hyper.eps = 1e-8;
  hyper.weight_decay = job_.adamw ? 0.01 : 0;
  return Check(luwu_begin_step(session_, step, &hyper, 1, kTimeoutMs), "luwu_begin_step");
}

Status WorkerSession::Commit(uint64_t step) {
  luwu_commit_result result = {};
  result.struct_size = sizeof result;
  RETURN_IF_ERROR(Check(luwu_commit(session_, step, &result, kTimeoutMs), "luwu_commit"));
  if (result.outcome == LUWU_APPLIED) return OkStatus();
  return Error(ErrorCode::kState, "step {} was not applied: {}", step, result.culprit);
}

Status WorkerSession::CloseAbsent(uint32_t layer) {
  return Check(luwu_close_layer(session_, layer, kTimeoutMs), "luwu_close_layer");
}

luwu_segment WorkerSession::WholeLayer(uint32_t layer, const Mapping& memory) const {
  luwu_segment segment = {};
  segment.struct_size = sizeof segment;
  segment.dtype = static_cast<int32_t>(DTypeOf(job_.wire_dtype));
  segment.data = memory.data();
  segment.count = job_.layers[layer].elements;
  return segment;
}

Status WorkerSession::StartPush(uint32_t layer, const Mapping& gradient, luwu_op* op) {
  const luwu_segment segment = WholeLayer(layer, gradient);
  return Check(luwu_push_async(session_, layer, &segment, 1, LUWU_PUSH_CLOSE, kTimeoutMs, op),
               "luwu_push_async");
}

Status WorkerSession::StartFetch(uint32_t layer, uint64_t version, const Mapping& target,
                                 luwu_op* op) {
  const luwu_segment segment = WholeLayer(layer, target);
  return Check(luwu_fetch_async(session_, layer, version, &segment, 1, kTimeoutMs, op),
               "luwu_fetch_async");
}

Status WorkerSession::FetchStart(uint32_t layer, uint64_t version, uint64_t elements,
                                 const Mapping& target) {
  luwu_segment segment = WholeLayer(layer, target);
  segment.count = elements;
  return Check(luwu_fetch(session_, layer, version, &segment, 1, kTimeoutMs), "luwu_fetch");
}

Status WorkerSession::View(uint32_t layer, uint64_t version, std::vector<const void*>* addresses) {
  pieces_.resize(job_.layers[layer].elements / job_.shard_elements + 1);
  uint32_t count = static_cast<uint32_t>(pieces_.size());
  RETURN_IF_ERROR(
      Check(luwu_fetch_view(session_, layer, version, pieces_.data(), &count, kTimeoutMs),
            "luwu_fetch_view"));
  for (uint32_t i = 0; i < count; ++i) addresses->push_back(pieces_[i].data);
  return OkStatus();
}

Status WorkerSession::Wait(luwu_op op) { return Check(luwu_wait(op, kTimeoutMs), "luwu_wait"); }

StatusOr<TransferCounts> WorkerSession::Counts() const {
  luwu_session_info info = {};
  info.struct_size = sizeof info;
  RETURN_IF_ERROR(Check(luwu_session_get_info(session_, &info), "luwu_session_get_info"));
  return TransferCounts{info.fetched_bytes, info.pushed_bytes};
}

}  // namespace luwu::bench
