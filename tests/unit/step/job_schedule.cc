#include "tests/unit/step/job_schedule.h"
#include "server/step/memory_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "common/wire/shard_header.h"
#include "server/optim/optimizer.h"
#include "server/store/residency_plan.h"

namespace luwu {

using fakes::Push;

namespace {

HyperParameters HyperFor(const JobSpec& spec, uint32_t group, double max_norm) {
  const OptimizerSpec& optimizer = spec.optimizer;
  HyperParameters hyper;
  hyper.lr = 0.01 * (group + 1);
  hyper.weight_decay = group == 0 ? 0.1 : 0;
  hyper.beta1 = 0.9;
  hyper.beta2 = 0.99;
  hyper.eps = 1e-8;
  if (optimizer.kind == OptimizerKind::kAdagrad) hyper.lr_decay = 0.01;
  if (optimizer.sgd_momentum) {
    hyper.momentum = 0.9;
    hyper.nesterov = group == 0;
    if (group == 1) hyper.dampening = 0.25;
  }
  if (spec.clip_scope == ClipScope::kGroup) max_norm *= 1 + 2 * group;
  if (spec.clip_scope != ClipScope::kNone) hyper.max_norm = max_norm;
  return hyper;
}

LayerSpec RandomLayer(std::mt19937& random, const std::string& name) {
  LayerSpec layer;
  layer.name = name;
  const bool frozen = random() % 5 == 0;
  const uint32_t tensors = 1 + random() % 3;
  for (uint32_t i = 0; i < tensors; ++i) {
    layer.elements += random() % 2 * (random() % 20);
    const uint64_t elements = 1 + random() % 120;
    layer.tensors.push_back(fakes::Tensor(name + "." + std::to_string(i), elements, layer.elements,
                                          !frozen && random() % 4 != 0, random() % 2));
    layer.elements += elements;
  }
  layer.elements += random() % 2 * (random() % 20);
  return layer;
}

}  // namespace

JobSpec RandomSpec(std::mt19937& random, std::optional<UpdateMode> mode) {
  std::vector<LayerSpec> layers;
  for (uint32_t i = 0; i < 2 + random() % 4; ++i) {
    layers.push_back(RandomLayer(random, "l" + std::to_string(i)));
  }
  layers.push_back(fakes::Layer("last", 1 + random() % 200));
  JobSpec spec = fakes::SmallSpec(1 + random() % 4, std::move(layers));
  spec.groups = 2;
  spec.optimizer.kind = random() % 2 == 0 ? OptimizerKind::kAdamW : OptimizerKind::kSgd;
  spec.optimizer.sgd_momentum = spec.optimizer.kind == OptimizerKind::kSgd && random() % 2 == 0;
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  spec.gradient_dtype = dtypes[random() % 3];
  spec.served_dtype = dtypes[random() % 3];
  if (spec.served_dtype == DType::kBFloat16 && random() % 2 == 0) {
    spec.optimizer.master_format = MasterFormat::kSplit;
  }
  spec.reduction = random() % 2 == 0 ? Reduction::kMean : Reduction::kSum;
  const auto any_mode = static_cast<UpdateMode>(1 + random() % 3);
  spec.update_mode = mode.value_or(any_mode);
  spec.keep_undo_state = spec.update_mode == UpdateMode::kSpeculative || random() % 3 != 0;
  const bool can_skip = spec.keep_undo_state || spec.update_mode == UpdateMode::kDeferred;
  spec.on_non_finite = can_skip ? NonFinitePolicy::kSkip : NonFinitePolicy::kFail;
  spec.slots_per_worker = 2 + random() % 3;
  if (spec.update_mode == UpdateMode::kImmediate) return spec;
  if (random() % 3 == 0) spec.held_dtype = DType::kBFloat16;
  spec.clip_scope = static_cast<ClipScope>(1 + random() % 4);
  if (random() % 2 == 0) spec.loss_scaling = {1024, 2, 0.5, 2};
  return spec;
}

uint64_t TightMemory(const JobSpec& spec, std::mt19937& random) {
  const Placement placement(fakes::NodeList(1), spec);
  if (random() % 2 == 0) {  // a window, where there can be one
    const uint64_t least = LeastMemoryPlan(spec, placement, 0, true).footprint.total();
    return least + random() % (least / 16);
  }
  const ShardMap map(spec, placement, 0);
  const JobFootprint footprint = FootprintOf(spec, map);
  return footprint.total() - footprint.state_bytes + LeastRoomBytes(spec, map) +
         random() % (footprint.state_bytes / 2 + 1);
}

void AddLayers(std::mt19937& random, uint32_t count, JobSpec* spec) {
  for (uint32_t i = 0; i < count; ++i) {
    spec->layers.push_back(RandomLayer(random, "more" + std::to_string(i)));
  }
}

void RandomizeState(std::mt19937& random, JobSpec* spec) {
  OptimizerSpec& optimizer = spec->optimizer;
  optimizer.kind = static_cast<OptimizerKind>(1 + random() % 5);
  optimizer.sgd_momentum = optimizer.kind == OptimizerKind::kSgd && random() % 4 != 0;
  optimizer.state_precision = static_cast<StatePrecision>(1 + random() % 3);
  const bool adam =
      optimizer.kind == OptimizerKind::kAdam || optimizer.kind == OptimizerKind::kAdamW;
  optimizer.amsgrad =
      adam && optimizer.state_precision != StatePrecision::kBlockwise8 && random() % 2 == 0;
  optimizer.rounding_seed = random();
  optimizer.initial_accumulator = optimizer.kind == OptimizerKind::kAdagrad ? 0.5 : 0;
  MakeShardsLong(random, spec);
}

void MakeShardsLong(std::mt19937& random, JobSpec* spec) {
  if (random() % 2 == 0) return;
  spec->shard_elements = 64 * (5 + random() % 8);
  spec->layers.push_back(fakes::Layer("long", 257 + random() % 800));
}

JobSchedule::JobSchedule(const JobSpec& spec, const ScheduleOptions& options)
    : options_(options),
      plan_(options.seed),
      random_(options.order_seed),
      world_(spec, uint64_t{1} << 30, options.storage, std::nullopt,
             options.two_numa_nodes ? fakes::SeatsOnTwoNodes() : std::vector<UpdateSeat>(2)),
      spec_(spec),
      model_(spec_),
      loss_scale_(InitialLossScale(spec_.loss_scaling)) {
  const double limits[] = {0, 0.5, 5, 50, 500};
  const double max_norm = limits[Plan(5)];
  for (uint32_t group = 0; group < spec_.groups; ++group) {
    groups_.push_back(HyperFor(spec_, group, max_norm));
  }
  world_.decider().ChangeDecisions(options_.change_decision);
  world_.LoadAll([&](uint32_t layer, uint64_t element) {
    bool in_tensor = false;
    for (const TensorSpec& tensor : spec_.layers[layer].tensors) {
      in_tensor |= element >= tensor.offset && element < tensor.offset + tensor.shape[0];
    }
    const float value = in_tensor ? float(int(Plan(2000)) - 1000) / 977.0f : 0.0f;
    model_.array(layer, 0)[element] = value;
    return value;
  });
  workers_.resize(spec_.world_size);
}

void JobSchedule::Run() {
  ASSERT_TRUE(world_.status().ok()) << ToString(world_.status());
  ASSERT_NO_FATAL_FAILURE(Compare(0));
  ASSERT_NO_FATAL_FAILURE(JoinAll());
  for (uint64_t step = 0; step < options_.steps; ++step) {
    past_.insert_or_assign(step, Past{model_, plan_, loss_scale_, skipped_});
    if (options_.crashes && Draw(3) == 0 && !options_.storage->Points().empty()) {
      step = Crash();
      ASSERT_TRUE(world_.status().ok()) << ToString(world_.status());
      ASSERT_NO_FATAL_FAILURE(Compare(step));
      ASSERT_NO_FATAL_FAILURE(JoinAll());
    }
    PlanStep(step);
    ASSERT_NO_FATAL_FAILURE(PlayStep(step));
    ASSERT_NO_FATAL_FAILURE(EndModelStep(step));
    // Not always: the next step's gradients then meet shards that are not settled yet.
    if (Draw(2) == 0 || step + 1 == options_.steps) {
      ASSERT_NO_FATAL_FAILURE(Compare(step + 1));
    }
  }
}

void JobSchedule::JoinAll() {
  for (uint32_t rank = 0; rank < spec_.world_size; ++rank) {
    workers_[rank].restarts = 0;
    workers_[rank].fake = world_.Join(rank, 0, Draw(2) == 0);
    ASSERT_TRUE(workers_[rank].fake->open_status().ok());
  }
}

// The step that comes next.
uint64_t JobSchedule::Crash() {
  for (Worker& worker : workers_) worker.fake.reset();
  const persist::Point point = options_.storage->Points().back();
  world_.Crash(point);
  const Past& past = past_.at(point.step);
  model_ = past.model;
  plan_ = past.plan;
  loss_scale_ = past.loss_scale;
  skipped_ = past.skipped;
  ++crashes_;
  return point.step;
}

void JobSchedule::PlanStep(uint64_t step) {
  gradients_.clear();
  gradient_layers_.clear();
  for (uint32_t rank = 0; rank < spec_.world_size; ++rank) {
    workers_[rank].all.clear();
    std::vector<uint32_t> order(spec_.layers.size());
    const bool forward = options_.same_order || rank % 2 == 0;
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = forward ? i : order.size() - 1 - i;
    for (const uint32_t layer : order) {
      if (spec_.layers[layer].trainable()) PlanLayer(step, layer, rank);
    }
  }
  spoiled_ = false;
  const bool spoil = Plan(4) == 0;
  if (spoil && options_.non_finite && spec_.on_non_finite == NonFinitePolicy::kSkip) SpoilOne();
  for (Worker& worker : workers_) Refill(worker);
}

// Makes one trainable element of one gradient infinite, if there is a gradient at all.
void JobSchedule::SpoilOne() {
  if (gradients_.empty()) return;
  const uint32_t which = Plan(static_cast<uint32_t>(gradients_.size()));
  for (const TensorSpec& tensor : spec_.layers[gradient_layers_[which]].tensors) {
    if (!tensor.trainable) continue;
    (*gradients_[which])[tensor.offset + Plan(static_cast<uint32_t>(tensor.shape[0]))] =
        std::numeric_limits<float>::infinity();
    spoiled_ = true;
    return;
  }
}

// Some micro-steps, none at times; closed by the last one or by a message of its own, for each
// shard or for all at once.
void JobSchedule::PlanLayer(uint64_t step, uint32_t layer, uint32_t rank) {
  const uint32_t shards = ShardCount(spec_.layers[layer].elements, spec_.shard_elements);
  const uint32_t total = options_.one_push ? 1 : Plan(4) == 0 ? 0 : 1 + Plan(3);
  const bool close_with_payload = options_.one_push || (total > 0 && Plan(2) == 0);
  for (uint32_t micro_step = 0; micro_step < total; ++micro_step) {
    auto values = std::make_unique<std::vector<float>>(spec_.layers[layer].elements);
    for (float& value : *values) value = float(int(Plan(20001)) - 10000) / 7919.0f;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const bool close = close_with_payload && micro_step + 1 == total;
      workers_[rank].all.push_back(
          {step, layer, shard, micro_step, close, Plan(2) == 0, values.get()});
      model_.Push(layer, shard, micro_step, rank, values.get());
    }
    gradients_.push_back(std::move(values));
    gradient_layers_.push_back(layer);
  }
  if (close_with_payload) return;
  if (Plan(2) == 0) {
    workers_[rank].all.push_back({step, layer, kAllShards, total, true, false, nullptr});
    return;
  }
  for (uint32_t shard = 0; shard < shards; ++shard) {
    workers_[rank].all.push_back({step, layer, shard, total, true, false, nullptr});
  }
}

void JobSchedule::Refill(Worker& worker) {
  worker.queue = worker.all;
  for (const Push& push : worker.all) {
    if (Draw(8) == 0) worker.queue.push_back(push);  // a repeat
  }
  if (options_.shuffle) {
    std::shuffle(worker.queue.begin(), worker.queue.end(), random_);
  } else {
    std::reverse(worker.queue.begin(), worker.queue.end());
  }
}

void JobSchedule::PlayStep(uint64_t step) {
  for (Worker& worker : workers_) ASSERT_NO_FATAL_FAILURE(Begin(step, worker));
  const auto busy = [](const Worker& worker) { return !worker.queue.empty(); };
  while (std::any_of(workers_.begin(), workers_.end(), busy)) {
    const uint32_t rank = Draw(workers_.size());
    if (options_.restarts && Draw(60) == 0) {
      ASSERT_NO_FATAL_FAILURE(Restart(step, rank));
    }
    if (SendSomething()) continue;
    const auto waiting = std::find_if(workers_.begin(), workers_.end(), busy);
    fakes::FakeBoard& board = waiting->fake->board();
    const uint64_t rings = board.rings();
    // Somebody's slot comes back, maybe not this one's: so not for long.
    if (!waiting->fake->FreeSlot() && board.rings() == rings) std::this_thread::yield();
    ASSERT_LT(++idle_turns_, uint64_t{1} << 26) << "no slot came back";
  }
  idle_turns_ = 0;
  if (options_.restarts && Draw(4) == 0) {
    ASSERT_NO_FATAL_FAILURE(RestartAtTheEnd(step));
  }
  ASSERT_NO_FATAL_FAILURE(Commit(step));
}

bool JobSchedule::SendSomething() {
  const uint32_t begin = Draw(workers_.size());
  for (uint32_t turn = 0; turn < workers_.size(); ++turn) {
    const uint32_t rank = (begin + turn) % static_cast<uint32_t>(workers_.size());
    if (rank != options_.straggler && SendOne(rank)) return true;
  }
  return options_.straggler && SendOne(*options_.straggler);
}

// When everything has been sent.
void JobSchedule::RestartAtTheEnd(uint64_t step) {
  const uint32_t rank = Draw(workers_.size());
  ASSERT_NO_FATAL_FAILURE(Restart(step, rank));
  while (!workers_[rank].queue.empty()) {
    fakes::FakeWorker& fake = *workers_[rank].fake;
    ASSERT_TRUE(fake.board().WaitFor([&] { return fake.FreeSlot().has_value(); }));
    SendOne(rank);
  }
}

void JobSchedule::Commit(uint64_t step) {
  for (Worker& worker : workers_) {
    fakes::CommitWait wait;
    world_.job().AwaitCommit(worker.fake->session_ptr(), step, world_.clock().AfterMs(60000),
                             wait.Callback());
    const StatusOr<CommitResult> result = wait.Wait();
    ASSERT_TRUE(result.ok()) << ToString(result.status());
    ASSERT_EQ(result->outcome, spoiled_ ? Outcome::kSkipped : Outcome::kApplied) << result->culprit;
    ASSERT_EQ(std::isnan(result->grad_norm), spoiled_);
    ASSERT_EQ(result->next_loss_scale, world_.decider().decision(step).next_loss_scale);
    fakes::FakeBoard& board = worker.fake->board();
    ASSERT_TRUE(board.WaitFor([&] { return board.current_step() == step + 1; }));
    ASSERT_EQ(worker.fake->board().fault(), ErrorCode::kOk) << worker.fake->board().fault_text();
  }
}

void JobSchedule::EndModelStep(uint64_t step) {
  const StepDecision decision = world_.decider().decision(step);
  const float scale = loss_scale_;
  loss_scale_ = decision.next_loss_scale;
  if (spoiled_) {
    ++skipped_;
    model_.SkipStep();
    return;
  }
  const auto everything = [](uint32_t, uint32_t) { return true; };
  const double norm = double(model_.Norm(scale, everything));
  ASSERT_NEAR(decision.grad_norm, norm, 1e-12 * norm);
  for (uint32_t unit = 0; unit < ClipUnits(spec_) && !options_.change_decision; ++unit) {
    const double max_norm = groups_[spec_.clip_scope == ClipScope::kGroup ? unit : 0].max_norm;
    const double unit_norm = double(model_.Norm(scale, [&](uint32_t layer, uint32_t group) {
      return ClipUnitOf(spec_.clip_scope, layer, group) == unit;
    }));
    const double factor = max_norm == 0 ? 1 : std::min(1.0, max_norm / (unit_norm + 1e-6));
    ASSERT_NEAR(decision.factor(unit), factor, 1e-12 * factor) << "unit " << unit;
  }
  model_.EndStep(groups_, scale, [&](uint32_t layer, uint32_t group) {
    return decision.factor(ClipUnitOf(spec_.clip_scope, layer, group));
  });
}

void JobSchedule::Begin(uint64_t step, Worker& worker) {
  const Status status = worker.fake->Begin(step, groups_);
  ASSERT_TRUE(status.ok()) << ToString(status);
  ASSERT_EQ(worker.fake->loss_scale(), loss_scale_);
}

void JobSchedule::Restart(uint64_t step, uint32_t rank) {
  Worker& worker = workers_[rank];
  const auto former = std::move(worker.fake);  // fenced, but still there
  worker.fake = world_.Join(rank, ++worker.restarts, Draw(2) == 0);
  ASSERT_TRUE(worker.fake->open_status().ok()) << ToString(worker.fake->open_status());
  ASSERT_NO_FATAL_FAILURE(Begin(step, worker));
  Refill(worker);
}

bool JobSchedule::SendOne(uint32_t rank) {
  Worker& worker = workers_[rank];
  if (worker.queue.empty()) return false;
  const std::optional<uint32_t> slot = worker.fake->FreeSlot();
  if (!slot) return false;
  worker.fake->Send(worker.queue.back(), *slot);
  if (Draw(8) == 0) worker.fake->Ring(*slot);  // the doorbell rings twice
  worker.queue.pop_back();
  return true;
}

// A deferred job publishes its shards after the commit.
void JobSchedule::AwaitVersion(uint64_t version) {
  if (workers_[0].fake == nullptr) return;
  fakes::FakeBoard& board = workers_[0].fake->board();
  const ShardMap& map = world_.job().shard_map();
  for (uint32_t i = 0; i < map.shard_count(); ++i) {
    const bool frozen = !spec_.layers[map.shards()[i].layer].trainable();
    const uint64_t word = frozen ? 1 : version + 1;
    ASSERT_TRUE(board.WaitFor([&] { return board.published(i) == word; }))
        << "shard " << i << " shows " << board.published(i) << ", not " << word;
  }
}

void JobSchedule::Compare(uint64_t version) {
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(version));
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    ASSERT_NO_FATAL_FAILURE(CompareArrays(layer));
    ASSERT_NO_FATAL_FAILURE(CompareServed(layer, version));
  }
}

std::vector<float> JobSchedule::State() {
  std::vector<float> state;
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const uint32_t arrays =
        spec_.layers[layer].trainable() ? optim::LayoutOf(spec_.optimizer).count : 1;
    for (uint32_t array = 0; array < arrays; ++array) {
      const auto values = world_.ReadLayer(layer, static_cast<Quantity>(array + 1));
      EXPECT_TRUE(values.ok()) << ToString(values.status());
      if (values.ok()) state.insert(state.end(), values->begin(), values->end());
    }
  }
  return state;
}

void JobSchedule::CompareArrays(uint32_t layer) {
  const uint32_t arrays =
      spec_.layers[layer].trainable() ? optim::LayoutOf(spec_.optimizer).count : 1;
  for (uint32_t array = 0; array < arrays; ++array) {
    const auto values = world_.ReadLayer(layer, static_cast<Quantity>(array + 1));
    ASSERT_TRUE(values.ok()) << ToString(values.status());
    const std::vector<float>& expected = model_.array(layer, array);
    ASSERT_EQ(values->size(), expected.size());
    ASSERT_EQ(std::memcmp(values->data(), expected.data(), 4 * expected.size()), 0)
        << "layer " << layer << " array " << array;
  }
}

std::vector<std::byte> JobSchedule::Served(uint32_t layer, const LocalShard& shard) {
  const float* masters = model_.array(layer, 0).data() + shard.first_element;
  std::vector<std::byte> served(shard.elements * DTypeBytes(spec_.served_dtype));
  const bool split = spec_.optimizer.master_format == MasterFormat::kSplit;
  if (!split || !spec_.layers[layer].trainable()) {
    ConvertElements(DType::kFloat32, reinterpret_cast<const std::byte*>(masters),
                    spec_.served_dtype, served.data(), shard.elements);
    return served;
  }
  for (uint64_t i = 0; i < shard.elements; ++i) {  // ties away from zero
    const auto upper = static_cast<uint16_t>((std::bit_cast<uint32_t>(masters[i]) + 0x8000u) >> 16);
    std::memcpy(served.data() + 2 * i, &upper, sizeof(upper));
  }
  return served;
}

void JobSchedule::CompareServed(uint32_t layer, uint64_t version) {
  if (workers_[0].fake == nullptr) return;
  const bool frozen = !spec_.layers[layer].trainable();
  const uint64_t shown = frozen ? 0 : version;
  const ShardMap& map = world_.job().shard_map();
  const ShardMap::IndexRange range = map.LayerRange(layer);
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const LocalShard& shard = map.shards()[i];
    const uint64_t bytes = shard.elements * DTypeBytes(spec_.served_dtype);
    ASSERT_EQ(workers_[0].fake->board().published(i), shown + 1);
    const fakes::FakeWorker::Copy copy = workers_[0].fake->ReadCopy(i, shown);
    const Status status =
        CheckShardHeader(copy.header, {fakes::JobWorld::kEpoch, shown, layer, shard.shard,
                                       spec_.served_dtype, bytes, copy.header.residence});
    ASSERT_TRUE(status.ok()) << ToString(status);
    ASSERT_EQ(copy.payload, Served(layer, shard)) << "layer " << layer;
    ASSERT_EQ(copy.header.payload_crc32c, Crc32c(copy.payload));
  }
}

}  // namespace luwu
