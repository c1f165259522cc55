#include "tests/unit/step/job_schedule.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "common/wire/shard_header.h"

namespace luwu {

using fakes::Push;

namespace {

HyperParameters HyperFor(const OptimizerSpec& optimizer, uint32_t group) {
  HyperParameters hyper;
  hyper.lr = 0.01 * (group + 1);
  hyper.weight_decay = group == 0 ? 0.1 : 0;
  if (optimizer.kind == OptimizerKind::kAdamW) {
    hyper.beta1 = 0.9;
    hyper.beta2 = 0.99;
    hyper.eps = 1e-8;
  } else if (optimizer.sgd_momentum) {
    hyper.momentum = 0.9;
    hyper.nesterov = true;
  }
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

JobSpec RandomSpec(std::mt19937& random) {
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
  spec.reduction = random() % 2 == 0 ? Reduction::kMean : Reduction::kSum;
  spec.keep_undo_state = random() % 3 != 0;
  spec.on_non_finite = spec.keep_undo_state ? NonFinitePolicy::kSkip : NonFinitePolicy::kFail;
  spec.slots_per_worker = 2 + random() % 3;
  return spec;
}

JobSchedule::JobSchedule(const JobSpec& spec, const ScheduleOptions& options)
    : options_(options),
      random_(options.seed),
      world_(spec),
      spec_(world_.job().spec()),
      model_(spec_) {
  for (uint32_t group = 0; group < spec_.groups; ++group) {
    groups_.push_back(HyperFor(spec_.optimizer, group));
  }
  world_.LoadAll([&](uint32_t layer, uint64_t element) {
    bool in_tensor = false;
    for (const TensorSpec& tensor : spec_.layers[layer].tensors) {
      in_tensor |= element >= tensor.offset && element < tensor.offset + tensor.shape[0];
    }
    const float value = in_tensor ? float(int(Draw(2000)) - 1000) / 977.0f : 0.0f;
    model_.array(layer, 0)[element] = value;
    return value;
  });
  workers_.resize(spec_.world_size);
}

void JobSchedule::Run() {
  ASSERT_NO_FATAL_FAILURE(Compare(0));
  for (uint32_t rank = 0; rank < spec_.world_size; ++rank) {
    workers_[rank].fake = world_.Join(rank, 0, Draw(2) == 0);
    ASSERT_TRUE(workers_[rank].fake->open_status().ok());
  }
  for (uint64_t step = 0; step < options_.steps; ++step) {
    PlanStep(step);
    ASSERT_NO_FATAL_FAILURE(PlayStep(step));
    model_.EndStep(groups_);
    ASSERT_NO_FATAL_FAILURE(Compare(step + 1));
  }
}

void JobSchedule::PlanStep(uint64_t step) {
  gradients_.clear();
  for (uint32_t rank = 0; rank < spec_.world_size; ++rank) {
    Worker& worker = workers_[rank];
    worker.all.clear();
    std::vector<uint32_t> order(spec_.layers.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = rank % 2 == 0 ? i : order.size() - 1 - i;
    for (const uint32_t layer : order) {
      if (spec_.layers[layer].trainable()) PlanLayer(step, layer, rank);
    }
    Refill(worker);
  }
}

// Some micro-steps, none at times; closed by the last one or by a message of its own, for each
// shard or for all at once.
void JobSchedule::PlanLayer(uint64_t step, uint32_t layer, uint32_t rank) {
  const uint32_t shards = ShardCount(spec_.layers[layer].elements, spec_.shard_elements);
  const uint32_t total = options_.one_push ? 1 : Draw(4) == 0 ? 0 : 1 + Draw(3);
  const bool close_with_payload = options_.one_push || (total > 0 && Draw(2) == 0);
  for (uint32_t micro_step = 0; micro_step < total; ++micro_step) {
    auto values = std::make_unique<std::vector<float>>(spec_.layers[layer].elements);
    for (float& value : *values) value = float(int(Draw(20001)) - 10000) / 7919.0f;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const bool close = close_with_payload && micro_step + 1 == total;
      workers_[rank].all.push_back(
          {step, layer, shard, micro_step, close, Draw(2) == 0, values.get()});
      model_.Push(layer, shard, micro_step, rank, values.get());
    }
    gradients_.push_back(std::move(values));
  }
  if (close_with_payload) return;
  if (Draw(2) == 0) {
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
  for (Worker& worker : workers_) ASSERT_TRUE(worker.fake->Begin(step, groups_).ok());
  for (;;) {
    std::vector<uint32_t> busy;
    for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (!workers_[rank].queue.empty()) busy.push_back(rank);
    }
    if (busy.empty()) break;
    const uint32_t rank = busy[Draw(busy.size())];
    if (options_.restarts && Draw(60) == 0) {
      ASSERT_NO_FATAL_FAILURE(Restart(step, rank));
    }
    bool sent = false;
    for (uint32_t turn = 0; turn < busy.size() && !sent; ++turn) {
      sent = SendOne(busy[(turn + rank) % busy.size()]);
    }
    if (!sent) {
      fakes::FakeBoard& board = workers_[rank].fake->board();
      ASSERT_TRUE(board.WaitFor([&] { return workers_[rank].fake->FreeSlot().has_value(); }))
          << "no slot came back";
    }
  }
  if (options_.restarts && Draw(4) == 0) {  // when everything has been sent
    const uint32_t rank = Draw(workers_.size());
    ASSERT_NO_FATAL_FAILURE(Restart(step, rank));
    while (!workers_[rank].queue.empty()) {
      fakes::FakeWorker& fake = *workers_[rank].fake;
      ASSERT_TRUE(fake.board().WaitFor([&] { return fake.FreeSlot().has_value(); }));
      SendOne(rank);
    }
  }
  for (Worker& worker : workers_) {
    fakes::CommitWait wait;
    world_.job().AwaitCommit(worker.fake->session_ptr(), step, world_.clock().AfterMs(60000),
                             wait.Callback());
    const StatusOr<CommitResult> result = wait.Wait();
    ASSERT_TRUE(result.ok()) << ToString(result.status());
    ASSERT_EQ(result->outcome, Outcome::kApplied);
    fakes::FakeBoard& board = worker.fake->board();
    ASSERT_TRUE(board.WaitFor([&] { return board.current_step() == step + 1; }));
    ASSERT_EQ(worker.fake->board().fault(), ErrorCode::kOk) << worker.fake->board().fault_text();
  }
}

void JobSchedule::Restart(uint64_t step, uint32_t rank) {
  Worker& worker = workers_[rank];
  const auto former = std::move(worker.fake);  // fenced, but still there
  worker.fake = world_.Join(rank, ++worker.restarts, Draw(2) == 0);
  ASSERT_TRUE(worker.fake->open_status().ok()) << ToString(worker.fake->open_status());
  ASSERT_TRUE(worker.fake->Begin(step, groups_).ok());
  Refill(worker);
}

bool JobSchedule::SendOne(uint32_t rank) {
  Worker& worker = workers_[rank];
  const std::optional<uint32_t> slot = worker.fake->FreeSlot();
  if (!slot) return false;
  worker.fake->Send(worker.queue.back(), *slot);
  if (Draw(8) == 0) worker.fake->Ring(*slot);  // the doorbell rings twice
  worker.queue.pop_back();
  return true;
}

void JobSchedule::Compare(uint64_t version) {
  for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
    ASSERT_NO_FATAL_FAILURE(CompareArrays(layer));
    ASSERT_NO_FATAL_FAILURE(CompareServed(layer, version));
  }
}

void JobSchedule::CompareArrays(uint32_t layer) {
  const uint32_t arrays =
      spec_.layers[layer].trainable() ? optim::StateArrayCount(spec_.optimizer) : 1;
  for (uint32_t array = 0; array < arrays; ++array) {
    const auto values = world_.ReadLayer(layer, static_cast<Quantity>(array + 1));
    ASSERT_TRUE(values.ok()) << ToString(values.status());
    const std::vector<float>& expected = model_.array(layer, array);
    ASSERT_EQ(values->size(), expected.size());
    ASSERT_EQ(std::memcmp(values->data(), expected.data(), 4 * expected.size()), 0)
        << "layer " << layer << " array " << array;
  }
}

void JobSchedule::CompareServed(uint32_t layer, uint64_t version) {
  if (workers_[0].fake == nullptr) return;
  const ConstByteSpan weights = workers_[0].fake->weights();
  const bool frozen = !spec_.layers[layer].trainable();
  const uint64_t shown = frozen ? 0 : version;
  const ShardMap& map = world_.job().shard_map();
  const ShardMap::IndexRange range = map.LayerRange(layer);
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const LocalShard& shard = map.shards()[i];
    const uint64_t bytes = shard.elements * DTypeBytes(spec_.served_dtype);
    ASSERT_EQ(workers_[0].fake->board().published(i), shown + 1);
    ShardHeader header;
    std::memcpy(&header, weights.data() + ShardMap::header_offset(i, shown), sizeof(header));
    const Status status = CheckShardHeader(
        header, {fakes::JobWorld::kEpoch, shown, layer, shard.shard, spec_.served_dtype, bytes});
    ASSERT_TRUE(status.ok()) << ToString(status);
    std::vector<std::byte> expected(bytes);
    ConvertElements(
        DType::kFloat32,
        reinterpret_cast<const std::byte*>(model_.array(layer, 0).data() + shard.first_element),
        spec_.served_dtype, expected.data(), shard.elements);
    const std::byte* payload = weights.data() + map.payload_offset(i, shown);
    ASSERT_EQ(std::memcmp(payload, expected.data(), bytes), 0) << "layer " << layer;
    ASSERT_EQ(header.payload_crc32c, Crc32c({payload, bytes}));
  }
}

}  // namespace luwu
