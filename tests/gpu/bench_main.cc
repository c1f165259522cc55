// What fetches into and pushes from GPU memory cost, as JSON on standard output: bytes a second
// alone, beside a GEMM, and of the bare copy engine; and what the GEMM loses. One daemon on this
// host, shared memory, bf16 on the wire and in the tensors, or fp32 in the tensors (kernels).
//
// Usage: luwu-gpu-bench [SECONDS-PER-MEASUREMENT [MI-ELEMENTS]]   Exit status 77: no GPU.
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdio>
#include <functional>
#include <iostream>
#include <thread>

#include "client/include/luwu/gpu.hpp"
#include "client/include/luwu/luwu.hpp"
#include "client/include/luwu/schema.hpp"
#include "tests/fakes/daemon_process.h"
#include "tests/gpu/gemm.h"
#include "tests/gpu/gpu.h"

namespace luwu::testing {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kGemmSize = 8192;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Calls `once`, which returns bytes, for about `seconds`; bytes a second.
double Rate(double seconds, const std::function<uint64_t()>& once) {
  once();
  const Clock::time_point start = Clock::now();
  uint64_t bytes = 0;
  while (SecondsSince(start) < seconds) bytes += once();
  return static_cast<double>(bytes) / SecondsSince(start);
}

// The copy engines by themselves, with one large copy after the other.
Json MeasureCopies(const Gpu& gpu, double seconds) {
  constexpr uint64_t kBytes = 64ull << 20;
  constexpr int kCopies = 8;
  const PinnedMemory in(gpu, kBytes);
  const PinnedMemory out(gpu, kBytes);
  const GpuMemory in_gpu(gpu, kBytes);
  const GpuMemory out_gpu(gpu, kBytes);
  const auto up = gpu.MakeStream();
  const auto down = gpu.MakeStream();
  const auto run = [&](bool with_up, bool with_down) {
    return Rate(seconds, [&] {
      for (int i = 0; i < kCopies; ++i) {
        if (with_up) gpu.driver().MemcpyHtoDAsync(in_gpu.address(), in.data(), kBytes, up);
        if (with_down) gpu.driver().MemcpyDtoHAsync(out.data(), out_gpu.address(), kBytes, down);
      }
      gpu.Finish(up);
      gpu.Finish(down);
      return kCopies * kBytes * (uint64_t{with_up} + uint64_t{with_down});
    });
  };
  Json json;
  json["h2d_bytes_per_s"] = run(true, false);
  json["d2h_bytes_per_s"] = run(false, true);
  json["both_bytes_per_s"] = run(true, true);
  return json;
}

// One layer that is fetched and pushed, over and over.
class Traffic {
 public:
  struct Layer {
    uint64_t elements = 0;
    luwu_dtype tensors = LUWU_FLOAT32;
  };
  Traffic(const Gpu& gpu, const std::string& endpoints, const Layer& layer)
      : gpu_(gpu),
        elements_(layer.elements),
        tensors_(layer.tensors),
        bytes_(elements_ * (tensors_ == LUWU_FLOAT32 ? 4 : 2)),
        weights_(gpu, bytes_),
        gradient_(gpu, bytes_),
        stream_(gpu.MakeStream()),
        session_({.endpoints = endpoints, .job = Job(layer)}) {
    const std::vector<float> values(elements_, 0.5f);
    session_.load({0, 0}, values.data(), values.size());
    session_.finish_load();
    gpu.Check(gpu.driver().MemsetD8Async(gradient_.address(), 0, bytes_, stream_), "memset");
  }

  uint64_t Fetch() {
    const luwu_segment segment = cxx::segment(weights_.pointer(), tensors_, elements_);
    cxx::fetch_device(session_, 0, step_, {segment}, stream_).wait();
    gpu_.Finish(stream_);
    return elements_ * 2;  // on the wire
  }
  // The time of a whole step is not that of a push: the daemons' update and the commit are not in.
  uint64_t Push(double* seconds) {
    session_.begin_step(step_, {cxx::sgd(0.0)}, 60'000);
    const luwu_segment segment = cxx::segment(gradient_.pointer(), tensors_, elements_);
    luwu_device_push how = {};
    how.flags = LUWU_PUSH_CLOSE;
    how.stream = stream_;
    const Clock::time_point start = Clock::now();
    cxx::push_device(session_, 0, {segment}, how).wait();
    *seconds += SecondsSince(start);
    session_.commit(step_, 60'000);
    ++step_;
    return elements_ * 2;
  }

  Json Measure(double seconds) {
    Json json;
    json["fetch_bytes_per_s"] = Rate(seconds, [&] { return Fetch(); });
    double push_seconds = 0;
    uint64_t pushed = 0;
    const Clock::time_point start = Clock::now();
    while (SecondsSince(start) < seconds) pushed += Push(&push_seconds);
    json["push_bytes_per_s"] = static_cast<double>(pushed) / push_seconds;
    return json;
  }
  void Step() {
    double ignored = 0;
    Fetch();
    Push(&ignored);
  }
  Json Info() const {
    const luwu_device_info info = cxx::device_info(session_);
    return {{"gpu", info.name},
            {"kernels", info.kernels == 1},
            {"no_kernels", info.no_kernels},
            {"pinned_bytes", info.pinned_bytes}};
  }

 private:
  static cxx::JobSpec Job(const Layer& layer) {
    cxx::JobSpec job;
    job.name = layer.tensors == LUWU_FLOAT32 ? "gpu-bench-fp32" : "gpu-bench-bf16";
    job.world_size = 1;
    job.optimizer = LUWU_SGD;
    job.served_dtype = job.gradient_dtype = LUWU_BFLOAT16;
    job.layers = {{"layer", {{"w", {layer.elements}}}}};
    return job;
  }

  const Gpu& gpu_;
  const uint64_t elements_;
  const luwu_dtype tensors_;
  const uint64_t bytes_;
  const GpuMemory weights_;
  const GpuMemory gradient_;
  const client::cuda::Stream stream_;
  cxx::Session session_;
  uint64_t step_ = 0;
};

// Products a second of a GEMM that runs all the time in a thread of its own, while `beside` runs.
class GemmLoad {
 public:
  explicit GemmLoad(Gpu& gpu)
      : gpu_(gpu), stream_(gpu.MakeStream()), gemm_(gpu, stream_, kGemmSize) {
    gemm_.Launch();
    gpu_.Finish(stream_);
  }
  double Run(const std::function<void()>& beside) {
    constexpr int kBatch = 8;  // the GPU always has some to do
    std::atomic<bool> stop{false};
    double rate = 0;
    std::thread thread([&] {
      gpu_.MakeCurrent();
      const Clock::time_point start = Clock::now();
      uint64_t products = 0;
      while (!stop) {
        for (int i = 0; i < kBatch; ++i) gemm_.Launch();
        gpu_.Finish(stream_);
        products += kBatch;
      }
      rate = static_cast<double>(products) / SecondsSince(start);
    });
    beside();
    stop = true;
    thread.join();
    return rate;
  }
  double flops() const { return gemm_.flops(); }

 private:
  Gpu& gpu_;
  const client::cuda::Stream stream_;
  const Gemm gemm_;
};

// `measure` beside a GEMM, and what that loses.
Json MeasureBeside(Gpu& gpu, double seconds, const std::function<Json()>& measure) {
  Json json;
  try {
    GemmLoad load(gpu);
    const double alone =
        load.Run([&] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
    const double beside = load.Run([&] { json = measure(); });
    json["gemm_tflops_alone"] = alone * load.flops() / 1e12;
    json["gemm_tflops_beside"] = beside * load.flops() / 1e12;
    json["gemm_slowdown"] = alone / beside - 1;
  } catch (const std::runtime_error& error) {
    json["no_gemm"] = error.what();
  }
  return json;
}

int Run(double seconds, uint64_t elements) {
  if (!Gpu::Missing().empty()) {
    Json json;
    json["skipped"] = "no GPU: " + Gpu::Missing();
    std::cout << json << std::endl;
    return 77;
  }
  Gpu gpu;
  Json json;
  const auto copies = [&] { return MeasureCopies(gpu, seconds); };
  json["copy_engines"] = copies();
  json["copy_engines"]["beside_gemm"] = MeasureBeside(gpu, seconds, copies);
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  DaemonCluster cluster(LUWU_LUWUD, {.memory = "6GiB", .threads = cores, .lease_ms = 30'000});
  for (const luwu_dtype tensors : {LUWU_BFLOAT16, LUWU_FLOAT32}) {
    Traffic traffic(gpu, cluster.endpoints(), {elements, tensors});
    for (int i = 0; i < 2; ++i) traffic.Step();  // memory is there from now on
    Json one = traffic.Measure(seconds);
    one["beside_gemm"] = MeasureBeside(gpu, seconds, [&] { return traffic.Measure(seconds); });
    const double limit = json["copy_engines"]["h2d_bytes_per_s"];
    one["fetch_of_copy_engine"] = one["fetch_bytes_per_s"].get<double>() / limit;
    json["session"] = traffic.Info();
    json[tensors == LUWU_FLOAT32 ? "fp32_tensors" : "bf16_tensors"] = one;
  }
  std::cout << json.dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace luwu::testing

int main(int argc, char** argv) {
  try {
    const double seconds = argc > 1 ? std::stod(argv[1]) : 3.0;
    const uint64_t mi_elements = argc > 2 ? std::stoull(argv[2]) : 64;
    return luwu::testing::Run(seconds, mi_elements << 20);
  } catch (const std::exception& error) {
    std::cerr << "luwu-gpu-bench: " << error.what() << std::endl;
    return 1;
  }
}
