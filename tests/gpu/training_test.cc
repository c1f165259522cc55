// Training through GPU memory, with real daemons: the same bits as through host memory. Runs over a
// GPU where there is one, and everywhere over the fake libcuda.so.1 of tests/fakes, which is late
// wherever it may be.
#include "client/include/luwu/gpu.hpp"
#include "tests/gpu/gpu.h"
#include "tests/unit/client/system_world.h"

namespace luwu::testing {
namespace {

class GpuTraining : public ::testing::TestWithParam<luwu_transport> {
 protected:
  void SetUp() override {
    if (!Gpu::Missing().empty()) GTEST_SKIP() << "no GPU test: " << Gpu::Missing();
    gpu_ = std::make_unique<Gpu>();
    stream_ = gpu_->MakeStream();
  }
  void TearDown() override {
    if (gpu_ == nullptr) return;
    const auto first =
        reinterpret_cast<const char* (*)()>(gpu_->Symbol("luwu_fake_cuda_first_violation"));
    if (first != nullptr) {
      EXPECT_STREQ(first(), "");
    }
  }

  cxx::Session Open(const cxx::JobSpec& job, uint64_t restart_count = 0) {
    return cxx::Session({.endpoints = cluster_.endpoints(),
                         .job = job,
                         .restart_count = restart_count,
                         .transport = GetParam()});
  }
  luwu_device_push How(uint32_t flags) const {
    luwu_device_push how = {};
    how.struct_size = sizeof how;
    how.flags = flags;
    how.stream = stream_;
    return how;
  }
  // What is on the GPU once the stream has passed what is on it now.
  std::vector<float> Read(const GpuMemory& memory, uint64_t count) {
    const PinnedMemory host(*gpu_, count * sizeof(float));
    gpu_->Check(gpu_->driver().MemcpyDtoHAsync(host.data(), memory.address(), count * sizeof(float),
                                               stream_),
                "cuMemcpyDtoHAsync");
    gpu_->Finish(stream_);
    return {host.floats(), host.floats() + count};
  }

  // As TrainWorker does through host memory.
  void Train(cxx::Session& session, const cxx::JobSpec& job, const RunOptions& run) {
    for (uint64_t step = run.first_step; step < run.first_step + run.steps; ++step) {
      session.begin_step(step, {cxx::adamw(1e-2)});
      for (uint32_t micro = 0; micro < run.micro_steps; ++micro) {
        for (uint32_t layer = 0; layer < job.layers.size(); ++layer) {
          const uint64_t count = ElementsOf(job.layers[layer]);
          const GpuMemory weights(*gpu_, count * sizeof(float));
          cxx::fetch_device(session, layer, step,
                            {cxx::segment(weights.pointer(), LUWU_FLOAT32, count)}, stream_)
              .wait();
          const std::vector<float> values = Read(weights, count);
          if (IsFrozen(job.layers[layer])) continue;
          const std::vector<float> gradient =
              GradientOf(values, step * 1000 + micro * 100 + layer * 10);
          Push(session, layer, gradient, micro + 1 == run.micro_steps ? LUWU_PUSH_CLOSE : 0);
        }
      }
      ASSERT_EQ(session.commit(step).outcome, LUWU_APPLIED);
    }
  }
  // Pushed at once, while the copy to the GPU may not have begun.
  void Push(cxx::Session& session, uint32_t layer, const std::vector<float>& gradient,
            uint32_t flags) {
    const uint64_t bytes = gradient.size() * sizeof(float);
    const PinnedMemory host(*gpu_, bytes);
    const GpuMemory memory(*gpu_, bytes);
    std::memcpy(host.data(), gradient.data(), bytes);
    gpu_->Check(gpu_->driver().MemcpyHtoDAsync(memory.address(), host.data(), bytes, stream_),
                "cuMemcpyHtoDAsync");
    cxx::push_device(session, layer,
                     {cxx::segment(memory.pointer(), LUWU_FLOAT32, gradient.size())}, How(flags))
        .wait();
  }

  DaemonCluster cluster_{LUWU_LUWUD, {.nodes = 2}};
  std::unique_ptr<Gpu> gpu_;
  client::cuda::Stream stream_ = nullptr;
};

TEST_P(GpuTraining, GivesTheBitsOfTrainingThroughHostMemory) {
  const RunOptions run{.steps = 3};
  cxx::JobSpec on_host = SmallJob(1);
  cxx::JobSpec on_gpu = SmallJob(1);
  on_host.name = "on-host";
  on_gpu.name = "on-gpu";
  cxx::Session host = Open(on_host);
  cxx::Session gpu = Open(on_gpu);
  LoadAll(host, on_host);
  LoadAll(gpu, on_gpu);
  EXPECT_EQ(cxx::device_info(gpu).used, 0u);
  TrainWorker(host, on_host, 0, run);
  Train(gpu, on_gpu, run);
  EXPECT_EQ(Fingerprint(gpu, on_gpu), Fingerprint(host, on_host));
  const luwu_device_info info = cxx::device_info(gpu);
  EXPECT_EQ(info.used, 1u);
  EXPECT_GT(info.fetched_bytes, 0u);
  EXPECT_GT(info.pushed_bytes, 0u);
  EXPECT_GT(info.pinned_bytes, 0u);
  EXPECT_NE(std::string(info.name), "");
  EXPECT_EQ(info.kernels == 1, std::string(info.no_kernels).empty());
  EXPECT_EQ(cxx::device_info(host).used, 0u);
}

// More chunks than slots, while requests are lost, doubled, late, and links end.
TEST_P(GpuTraining, LayersLargerThanTheRingArriveWhole) {
  constexpr uint64_t kCount = (18u << 20) + 12345;
  const DaemonCluster roomy(LUWU_LUWUD, {.nodes = 2, .memory = "1GiB", .lease_ms = 20'000});
  cxx::JobSpec job;
  job.name = "large";
  job.world_size = 1;
  job.optimizer = LUWU_SGD;
  job.served_dtype = job.gradient_dtype = LUWU_FLOAT32;
  job.layers = {{"large", {{"w", {kCount}}}}};
  cxx::Session session({.endpoints = roomy.endpoints(),
                        .job = job,
                        .transport = GetParam(),
                        .fault_plan = "seed=8,duplicate=100,drop=100,lose=100,"
                                      "disconnect_after=29"});
  const std::vector<float> masters = Values(1, kCount);
  const std::vector<float> first = Values(2, kCount);
  const std::vector<float> second = Values(3, kCount);
  session.load({0, 0}, masters.data(), kCount);
  session.finish_load();
  session.begin_step(0, {cxx::sgd(0.5)});
  Push(session, 0, first, 0);
  Push(session, 0, second, LUWU_PUSH_CLOSE);
  ASSERT_EQ(session.commit(0).outcome, LUWU_APPLIED);
  const GpuMemory weights(*gpu_, kCount * sizeof(float));
  cxx::fetch_device(session, 0, 1, {cxx::segment(weights.pointer(), LUWU_FLOAT32, kCount)}, stream_)
      .wait();
  const std::vector<float> updated = Read(weights, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {  // exact: all are multiples of 2^-14
    ASSERT_EQ(updated[i], masters[i] - 0.5f * (first[i] + second[i])) << i;
  }
}

// On the wire bf16, in the tensors fp32: converted on the GPU, or by the CPU in a build without
// kernels, with the same bits.
TEST_P(GpuTraining, ConvertsAsTheCpuDoes) {
  cxx::JobSpec job = SmallJob(1);
  job.served_dtype = LUWU_BFLOAT16;
  job.gradient_dtype = LUWU_BFLOAT16;
  const RunOptions run{.steps = 2, .micro_steps = 1};
  cxx::JobSpec on_host = job;
  on_host.name = "on-host";
  cxx::Session host = Open(on_host);
  cxx::Session gpu = Open(job);
  LoadAll(host, on_host);
  LoadAll(gpu, job);
  TrainWorker(host, on_host, 0, run);
  Train(gpu, job, run);
  EXPECT_EQ(Fingerprint(gpu, job), Fingerprint(host, on_host));
}

TEST_P(GpuTraining, PushesScaleAndTakeStockWhereThereAreKernels) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job);
  LoadAll(session, job);
  session.begin_step(0, {cxx::adamw(1e-2)});
  const PinnedMemory host(*gpu_, 63 * sizeof(float));
  const GpuMemory memory(*gpu_, 63 * sizeof(float));
  for (int i = 0; i < 63; ++i) host.floats()[i] = static_cast<float>(i);
  gpu_->Check(
      gpu_->driver().MemcpyHtoDAsync(memory.address(), host.data(), 63 * sizeof(float), stream_),
      "cuMemcpyHtoDAsync");
  luwu_gradient_check check = {};
  check.struct_size = sizeof check;
  luwu_device_push how = How(LUWU_PUSH_CLOSE);
  how.scale = 0.5;
  how.check = &check;
  const luwu_segment segment = cxx::segment(memory.pointer(), LUWU_FLOAT32, 63);
  luwu_op op = 0;
  const int32_t started = luwu_push_device(session.handle(), 0, &segment, 1, &how, 20'000, &op);
  if (cxx::device_info(session).kernels == 0) {
    EXPECT_EQ(started, LUWU_E_UNSUPPORTED);
    EXPECT_NE(std::string(luwu_last_error()).find("nvcc"), std::string::npos);
    return;
  }
  cxx::check(started);
  cxx::Op(op).wait();
  EXPECT_EQ(check.non_finite, 0u);
  EXPECT_EQ(check.square_sum, 62.0 * 63.0 * 125.0 / 6.0 / 4.0);
}

TEST_P(GpuTraining, WrongMemoryAndOptionsAreRefused) {
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job);
  LoadAll(session, job);
  session.begin_step(0, {cxx::adamw(1e-2)});
  std::vector<float> values(63);
  const luwu_segment on_host = cxx::segment(values.data(), 63);
  luwu_op op = 0;
  EXPECT_EQ(luwu_fetch_device(session.handle(), 0, 0, &on_host, 1, stream_, 1000, &op),
            LUWU_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(luwu_last_error()).find("not in GPU memory"), std::string::npos);
  const GpuMemory memory(*gpu_, 63 * sizeof(float));
  const luwu_segment segment = cxx::segment(memory.pointer(), LUWU_FLOAT32, 63);
  luwu_device_push how = How(LUWU_PUSH_CLOSE);
  how.scale = 1e300;
  EXPECT_EQ(luwu_push_device(session.handle(), 0, &segment, 1, &how, 1000, &op),
            LUWU_E_INVALID_ARGUMENT);
  how.scale = 0;
  how.struct_size = 8;
  EXPECT_EQ(luwu_push_device(session.handle(), 0, &segment, 1, &how, 1000, &op), LUWU_E_BAD_STRUCT);
  EXPECT_EQ(luwu_fetch_device(session.handle(), 0, 7, &segment, 1, stream_, 50, &op), LUWU_OK);
  EXPECT_EQ(luwu_wait(op, 20'000), LUWU_E_DEADLINE);  // there is no version 7
}

// Each fetch goes on where the former one waits: none of them waits for the stream, which stands
// still. Only the fake can be made to.
TEST_P(GpuTraining, PrefetchesDoNotWaitForAStreamThatStandsStill) {
  const auto hold =
      reinterpret_cast<void (*)(client::cuda::Stream, int)>(gpu_->Symbol("luwu_fake_cuda_hold"));
  if (hold == nullptr) GTEST_SKIP() << "a real GPU's stream cannot be held";
  const cxx::JobSpec job = SmallJob(1);
  cxx::Session session = Open(job);
  LoadAll(session, job);
  hold(stream_, 1);
  std::vector<GpuMemory> memory;
  std::vector<cxx::Op> fetches;
  for (const uint32_t layer : {0u, 1u, 2u}) {
    const uint64_t count = ElementsOf(job.layers[layer]);
    memory.emplace_back(*gpu_, count * sizeof(float));
    fetches.push_back(cxx::fetch_device(
        session, layer, 0, {cxx::segment(memory.back().pointer(), LUWU_FLOAT32, count)}, stream_));
  }
  for (cxx::Op& fetch : fetches) fetch.wait();
  hold(stream_, 0);
  for (const uint32_t layer : {0u, 1u, 2u}) {
    const uint64_t count = ElementsOf(job.layers[layer]);
    EXPECT_EQ(Read(memory[layer], count), Values(1000 + layer, count));
  }
}

// The end of a session leaves the stream and the memory in order.
TEST_P(GpuTraining, ASessionClosesWithCallsUnderWay) {
  const cxx::JobSpec job = SmallJob(1);
  const uint64_t count = ElementsOf(job.layers[3]);
  const GpuMemory memory(*gpu_, count * sizeof(float));
  luwu_op op = 0;
  {
    cxx::Session session = Open(job);
    LoadAll(session, job);
    const luwu_segment segment = cxx::segment(memory.pointer(), LUWU_FLOAT32, count);
    cxx::check(luwu_fetch_device(session.handle(), 3, 5, &segment, 1, stream_, 20'000, &op));
  }
  EXPECT_EQ(luwu_wait(op, 20'000), LUWU_E_CANCELLED);
  gpu_->Finish(stream_);
}

INSTANTIATE_TEST_SUITE_P(Transports, GpuTraining, ::testing::ValuesIn(TestedTransports()),
                         [](const auto& info) { return TransportName(info.param); });

}  // namespace
}  // namespace luwu::testing
