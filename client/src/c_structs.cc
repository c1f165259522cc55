#include "client/src/c_structs.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "common/rpc/tls.h"

namespace luwu::client {
namespace {

constexpr uint32_t kDimensionsMax = 64;
constexpr uint32_t kTensorsMax = 1u << 20;  // of one layer
constexpr uint32_t kSegmentsMax = 1u << 24;
constexpr size_t kNameBytesMax = 4096;
constexpr uint32_t kTimeoutMsDefault = 30'000;
constexpr uint32_t kPatienceMsDefault = 5'000;
constexpr uint32_t kConnectionsDefault = 2;

// Length of the UTF-8 character at the start of `text`; 0 when there is none.
size_t Utf8Length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80           ? 1
                        : (lead >> 5) == 0x06 ? 2
                        : (lead >> 4) == 0x0e ? 3
                        : (lead >> 3) == 0x1e ? 4
                                              : 0;
  if (length == 0 || length > text.size()) return 0;
  uint32_t point = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    point = (point << 6) | (next & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  return point < kSmallest[length] || point > 0x10ffff || surrogate ? 0 : length;
}

StatusOr<std::string> ToName(const char* text, const std::string& what) {
  if (text == nullptr) return Error(ErrorCode::kInvalidArgument, "{}: name is NULL", what);
  const size_t bytes = ::strnlen(text, kNameBytesMax + 1);
  if (bytes > kNameBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "{}: name is longer than {} bytes", what,
                 kNameBytesMax);
  }
  const std::string name(text, bytes);
  for (size_t at = 0; at < name.size();) {
    const size_t length = Utf8Length(std::string_view(name).substr(at));
    if (length == 0) return Error(ErrorCode::kInvalidArgument, "{}: name is not UTF-8", what);
    at += length;
  }
  return name;
}

template <typename Enum>
StatusOr<Enum> ToEnum(int32_t value, int32_t first, int32_t last, const char* what) {
  if (value < first || value > last) {
    return Error(ErrorCode::kInvalidArgument, "{} is {}; it must be {} to {}", what, value, first,
                 last);
  }
  return static_cast<Enum>(value);
}

StatusOr<bool> ToBool(uint32_t value, const std::string& what) {
  if (value > 1) {
    return Error(ErrorCode::kInvalidArgument, "{} is {}; it must be 0 or 1", what, value);
  }
  return value == 1;
}

Status CheckArray(const void* data, uint64_t count, uint64_t count_max, const std::string& what) {
  if (count > count_max) {
    return Error(ErrorCode::kInvalidArgument, "{}: {} entries; at most {}", what, count, count_max);
  }
  if (count > 0 && data == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "{} is NULL with {} entries", what, count);
  }
  return OkStatus();
}

StatusOr<TensorSpec> ToTensor(const luwu_tensor_spec& in, const std::string& what) {
  RETURN_IF_ERROR(CheckStruct(&in, what.c_str()));
  TensorSpec tensor;
  ASSIGN_OR_RETURN(tensor.name, ToName(in.name, what));
  RETURN_IF_ERROR(CheckArray(in.shape, in.dims, kDimensionsMax, what + ".shape"));
  if (in.dims > 0) tensor.shape.assign(in.shape, in.shape + in.dims);
  tensor.offset = in.offset;
  tensor.group = in.group;
  ASSIGN_OR_RETURN(tensor.trainable, ToBool(in.trainable, what + ".trainable"));
  return tensor;
}

StatusOr<LayerSpec> ToLayer(const luwu_layer_spec& in, uint32_t index) {
  const std::string what = fmt::format("layers[{}]", index);
  RETURN_IF_ERROR(CheckStruct(&in, what.c_str()));
  LayerSpec layer;
  ASSIGN_OR_RETURN(layer.name, ToName(in.name, what));
  layer.elements = in.elements;
  RETURN_IF_ERROR(CheckArray(in.tensors, in.tensor_count, kTensorsMax, what + ".tensors"));
  for (uint32_t i = 0; i < in.tensor_count; ++i) {
    ASSIGN_OR_RETURN(TensorSpec tensor,
                     ToTensor(in.tensors[i], fmt::format("{}.tensors[{}]", what, i)));
    layer.tensors.push_back(std::move(tensor));
  }
  return layer;
}

// 0 leaves the default, which `out` has.
template <typename Enum>
Status ToEnumOr(int32_t value, int32_t first, int32_t last, const char* what, Enum* out) {
  if (value == 0) return OkStatus();
  ASSIGN_OR_RETURN(*out, ToEnum<Enum>(value, first, last, what));
  return OkStatus();
}

Status ToOptimizer(const luwu_job_spec& in, OptimizerSpec* out) {
  ASSIGN_OR_RETURN(out->kind,
                   ToEnum<OptimizerKind>(in.optimizer, LUWU_ADAMW, LUWU_ADAGRAD, "job.optimizer"));
  ASSIGN_OR_RETURN(out->sgd_momentum, ToBool(in.sgd_momentum, "job.sgd_momentum"));
  ASSIGN_OR_RETURN(out->amsgrad, ToBool(in.amsgrad, "job.amsgrad"));
  RETURN_IF_ERROR(ToEnumOr(in.state_precision, LUWU_STATE_FLOAT32, LUWU_STATE_BLOCKWISE8,
                           "job.state_precision", &out->state_precision));
  RETURN_IF_ERROR(ToEnumOr(in.master_format, LUWU_MASTER_FLOAT32, LUWU_MASTER_SPLIT,
                           "job.master_format", &out->master_format));
  out->rounding_seed = in.rounding_seed;
  out->initial_accumulator = in.initial_accumulator;
  return OkStatus();
}

void ToLossScaling(const luwu_job_spec& in, LossScaling* out) {
  out->initial_scale = in.loss_scale_initial;
  if (in.loss_scale_growth_factor != 0) out->growth_factor = in.loss_scale_growth_factor;
  if (in.loss_scale_backoff_factor != 0) out->backoff_factor = in.loss_scale_backoff_factor;
  const uint32_t interval = in.loss_scale_growth_interval;
  if (interval != 0) out->growth_interval = interval == UINT32_MAX ? 0 : interval;
}

Status ToUpdateMode(const luwu_job_spec& in, JobSpec* out) {
  RETURN_IF_ERROR(
      ToEnumOr(in.held_dtype, LUWU_FLOAT32, LUWU_FLOAT64, "job.held_dtype", &out->held_dtype));
  RETURN_IF_ERROR(
      ToEnumOr(in.clip_scope, LUWU_CLIP_NONE, LUWU_CLIP_LAYER, "job.clip_scope", &out->clip_scope));
  ToLossScaling(in, &out->loss_scaling);
  const bool decides_late =
      out->clip_scope != ClipScope::kNone || out->loss_scaling.initial_scale != 0;
  out->update_mode = decides_late ? UpdateMode::kDeferred : UpdateMode::kImmediate;
  return ToEnumOr(in.update_mode, LUWU_UPDATE_IMMEDIATE, LUWU_UPDATE_SPECULATIVE, "job.update_mode",
                  &out->update_mode);
}

Status ToTypesAndPolicies(const luwu_job_spec& in, JobSpec* out) {
  ASSIGN_OR_RETURN(out->served_dtype,
                   ToEnum<DType>(in.served_dtype, LUWU_FLOAT32, LUWU_FLOAT64, "job.served_dtype"));
  ASSIGN_OR_RETURN(out->gradient_dtype, ToEnum<DType>(in.gradient_dtype, LUWU_FLOAT32, LUWU_FLOAT64,
                                                      "job.gradient_dtype"));
  ASSIGN_OR_RETURN(out->reduction,
                   ToEnum<Reduction>(in.reduction, LUWU_SUM, LUWU_MEAN, "job.reduction"));
  ASSIGN_OR_RETURN(out->on_non_finite,
                   ToEnum<NonFinitePolicy>(in.on_non_finite, LUWU_NON_FINITE_SKIP,
                                           LUWU_NON_FINITE_FAIL, "job.on_non_finite"));
  ASSIGN_OR_RETURN(out->keep_undo_state, ToBool(in.keep_undo_state, "job.keep_undo_state"));
  return OkStatus();
}

StatusOr<JobSpec> ToJob(const luwu_job_spec* given) {
  RETURN_IF_ERROR(CheckStruct(given, "job"));
  const luwu_job_spec in = Widened(*given);
  JobSpec job;
  ASSIGN_OR_RETURN(job.accumulates, ToBool(in.accumulates, "job.accumulates"));
  ASSIGN_OR_RETURN(job.name, ToName(in.name, "job"));
  job.world_size = in.world_size;
  job.groups = in.groups;
  RETURN_IF_ERROR(CheckArray(in.layers, in.layer_count, kLayersMax, "job.layers"));
  for (uint32_t i = 0; i < in.layer_count; ++i) {
    ASSIGN_OR_RETURN(LayerSpec layer, ToLayer(in.layers[i], i));
    job.layers.push_back(std::move(layer));
  }
  RETURN_IF_ERROR(ToOptimizer(in, &job.optimizer));
  RETURN_IF_ERROR(ToTypesAndPolicies(in, &job));
  RETURN_IF_ERROR(ToUpdateMode(in, &job));
  if (in.slots_per_worker != 0) job.slots_per_worker = in.slots_per_worker;
  if (in.shard_elements != 0) job.shard_elements = in.shard_elements;
  if (in.overflow_bytes != UINT64_MAX) job.overflow_bytes = in.overflow_bytes;
  job.durable_every = in.durable_every;
  job.memory_bytes = in.memory_bytes;
  RETURN_IF_ERROR(
      ToEnumOr(in.durability, LUWU_MEMORY, LUWU_SYNCED, "job.durability", &job.durability));
  return job;
}

StatusOr<HyperParameters> ToHyper(const luwu_hyper& given, const std::string& what) {
  const luwu_hyper in = Widened(given);
  HyperParameters out{.lr = in.lr,
                      .weight_decay = in.weight_decay,
                      .beta1 = in.beta1,
                      .beta2 = in.beta2,
                      .eps = in.eps,
                      .momentum = in.momentum,
                      .dampening = in.dampening,
                      .lr_decay = in.lr_decay,
                      .max_norm = in.max_norm};
  ASSIGN_OR_RETURN(out.nesterov, ToBool(in.nesterov, what + ".nesterov"));
  return out;
}

// Entry `index` of an array whose entries have the size that its caller compiled.
const luwu_hyper& EntryOf(const luwu_hyper* array, uint32_t index) {
  const auto* bytes = static_cast<const std::byte*>(static_cast<const void*>(array));
  return *static_cast<const luwu_hyper*>(
      static_cast<const void*>(bytes + uint64_t{index} * array->struct_size));
}

StatusOr<std::vector<std::string>> ToEndpoints(const char* text) {
  if (text == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "endpoints is NULL; name a daemon as \"host:port\"");
  }
  std::vector<std::string> endpoints;
  std::string_view rest(text);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view one = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    while (!one.empty() && one.back() == ' ') one.remove_suffix(1);
    if (!one.empty()) endpoints.emplace_back(one);
  }
  return endpoints;
}

TlsFiles ToTlsFiles(const luwu_open_options& in) {
  const auto path = [](const char* text) { return text == nullptr ? "" : text; };
  const TlsFiles given = {path(in.tls_certificate), path(in.tls_key), path(in.tls_ca)};
  return given.empty() ? rpc::TlsFilesFromEnvironment() : given;
}

}  // namespace

Status CheckOut(const void* pointer, const char* what) {
  if (pointer != nullptr) return OkStatus();
  return Error(ErrorCode::kInvalidArgument, "{} is NULL", what);
}

StatusOr<OpenOptions> ToOpenOptions(const luwu_open_options* given) {
  RETURN_IF_ERROR(CheckStruct(given, "options"));
  const luwu_open_options values = Widened(*given);
  const luwu_open_options* in = &values;
  OpenOptions options;
  ASSIGN_OR_RETURN(options.must_train, ToBool(in->must_train, "options.must_train"));
  ASSIGN_OR_RETURN(options.endpoints, ToEndpoints(in->endpoints));
  ASSIGN_OR_RETURN(options.job, ToJob(in->job));
  options.rank = in->rank;
  options.restart_count = in->restart_count;
  ASSIGN_OR_RETURN(options.transport,
                   ToEnum<TransportChoice>(in->transport, LUWU_TRANSPORT_AUTO, LUWU_TRANSPORT_VERBS,
                                           "options.transport"));
  ASSIGN_OR_RETURN(options.verify,
                   ToEnum<VerifyPayload>(static_cast<int32_t>(in->verify_served_crc), 0, 2,
                                         "options.verify_served_crc"));
  const auto or_default = [](uint32_t value, uint32_t fallback) {
    return value == 0 ? fallback : value;
  };
  options.tcp_connections = or_default(in->tcp_connections, kConnectionsDefault);
  options.timeout_ms = or_default(in->timeout_ms, kTimeoutMsDefault);
  options.patience_ms = or_default(in->node_timeout_ms, kPatienceMsDefault);
  if (in->rdma != nullptr) {
    ASSIGN_OR_RETURN(options.rdma, transport::ParseVerbsOptions(in->rdma));
  }
  options.tls = ToTlsFiles(*in);
  if (in->fault_plan != nullptr) {
    ASSIGN_OR_RETURN(options.faults, transport::ParseFaultPlan(in->fault_plan));
  }
  return options;
}

StatusOr<DeleteOptions> ToDeleteOptions(const char* endpoints, const char* job, uint32_t force,
                                        uint32_t timeout_ms) {
  DeleteOptions options;
  options.tls = rpc::TlsFilesFromEnvironment();
  ASSIGN_OR_RETURN(options.endpoints, ToEndpoints(endpoints));
  ASSIGN_OR_RETURN(options.job, ToName(job, "job"));
  ASSIGN_OR_RETURN(options.force, ToBool(force, "force"));
  options.timeout_ms = timeout_ms == 0 ? kTimeoutMsDefault : timeout_ms;
  return options;
}

StatusOr<std::vector<HyperParameters>> ToGroups(const luwu_hyper* groups, uint32_t count) {
  RETURN_IF_ERROR(CheckArray(groups, count, kGroupsMax, "groups"));
  std::vector<HyperParameters> values;
  for (uint32_t i = 0; i < count; ++i) {
    const luwu_hyper& in = EntryOf(groups, i);
    const std::string what = fmt::format("groups[{}]", i);
    RETURN_IF_ERROR(CheckStruct(&in, what.c_str()));
    if (in.struct_size != groups->struct_size) {
      return Error(ErrorCode::kBadStruct, "{}.struct_size is {}; the entry before it says {}", what,
                   in.struct_size, groups->struct_size);
    }
    ASSIGN_OR_RETURN(const HyperParameters one, ToHyper(in, what));
    values.push_back(one);
  }
  return values;
}

Status ToSegments(const luwu_segment* in, uint32_t count, std::vector<Segment>* segments) {
  segments->clear();
  if (in == nullptr || count == 0) {
    return Error(ErrorCode::kInvalidArgument, "no segments: name at least one range of the layer");
  }
  if (count > kSegmentsMax) {
    return Error(ErrorCode::kInvalidArgument, "{} segments; at most {}", count, kSegmentsMax);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (in[i].struct_size != sizeof(luwu_segment)) {
      return Error(ErrorCode::kBadStruct, "segments[{}].struct_size is {}; this library's is {}", i,
                   in[i].struct_size, sizeof(luwu_segment));
    }
    if (in[i].dtype < LUWU_FLOAT32 || in[i].dtype > LUWU_FLOAT64) {
      return Error(ErrorCode::kInvalidArgument, "segments[{}].dtype is {}; it must be 1 to 3", i,
                   in[i].dtype);
    }
    segments->push_back({static_cast<DType>(in[i].dtype), static_cast<std::byte*>(in[i].data),
                         in[i].offset, in[i].count});
  }
  return OkStatus();
}

}  // namespace luwu::client
