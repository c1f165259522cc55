// Every function of the C ABI called wrongly, without any daemon: the right error, a text, no
// crash. Stale handles, which need a session, are in client_system_test.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/include/luwu/luwu.h"

namespace {

constexpr uint32_t kTimeoutMs = 50;

class CApiMisuse : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(luwu_init(LUWU_ABI_VERSION), LUWU_OK); }
};

// Calls every function that takes a session.
std::vector<std::pair<const char*, std::function<int32_t(luwu_session)>>> SessionCalls() {
  static float values[4] = {};
  static luwu_segment segment = {sizeof(luwu_segment), LUWU_FLOAT32, values, 0, 4};
  static luwu_session_info info = {};
  info.struct_size = sizeof info;
  static luwu_commit_result result = {};
  result.struct_size = sizeof result;
  static luwu_hyper hyper = {};
  hyper.struct_size = sizeof hyper;
  static luwu_view_piece view;
  static luwu_slot_piece slot;
  static uint32_t count = 1;
  static luwu_op op = 0;
  static char text[64];
  static luwu_device_push device_push = {};
  device_push.struct_size = sizeof device_push;
  static luwu_device_info device_info = {};
  device_info.struct_size = sizeof device_info;
  return {
      {"close", [](luwu_session s) { return luwu_session_close(s); }},
      {"get_info", [](luwu_session s) { return luwu_session_get_info(s, &info); }},
      {"load", [](luwu_session s) { return luwu_load(s, 0, 0, values, 4, kTimeoutMs); }},
      {"finish_load", [](luwu_session s) { return luwu_finish_load(s, 0, kTimeoutMs); }},
      {"wait_loaded", [](luwu_session s) { return luwu_wait_loaded(s, kTimeoutMs); }},
      {"read",
       [](luwu_session s) { return luwu_read(s, 0, LUWU_MASTER, 0, values, 4, kTimeoutMs); }},
      {"begin_step", [](luwu_session s) { return luwu_begin_step(s, 0, &hyper, 1, kTimeoutMs); }},
      {"commit", [](luwu_session s) { return luwu_commit(s, 0, &result, kTimeoutMs); }},
      {"fetch", [](luwu_session s) { return luwu_fetch(s, 0, 0, &segment, 1, kTimeoutMs); }},
      {"fetch_async",
       [](luwu_session s) { return luwu_fetch_async(s, 0, 0, &segment, 1, kTimeoutMs, &op); }},
      {"fetch_view",
       [](luwu_session s) { return luwu_fetch_view(s, 0, 0, &view, &count, kTimeoutMs); }},
      {"push", [](luwu_session s) { return luwu_push(s, 0, &segment, 1, 0, kTimeoutMs); }},
      {"push_async",
       [](luwu_session s) { return luwu_push_async(s, 0, &segment, 1, 0, kTimeoutMs, &op); }},
      {"close_layer", [](luwu_session s) { return luwu_close_layer(s, 0, kTimeoutMs); }},
      {"fetch_device",
       [](luwu_session s) {
         return luwu_fetch_device(s, 0, 0, &segment, 1, nullptr, kTimeoutMs, &op);
       }},
      {"push_device",
       [](luwu_session s) {
         return luwu_push_device(s, 0, &segment, 1, &device_push, kTimeoutMs, &op);
       }},
      {"get_device_info",
       [](luwu_session s) { return luwu_session_get_device_info(s, &device_info); }},
      {"push_inplace_begin",
       [](luwu_session s) {
         return luwu_push_inplace_begin(s, 0, 0, &slot, &count, 0, kTimeoutMs, &op);
       }},
      {"status_json",
       [](luwu_session s) { return luwu_status_json(s, text, sizeof text, kTimeoutMs); }},
  };
}

TEST_F(CApiMisuse, ZeroAndMadeUpHandlesAreRefusedByEveryFunction) {
  for (const luwu_session handle : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 60}) {
    for (const auto& [name, call] : SessionCalls()) {
      EXPECT_EQ(call(handle), LUWU_E_BAD_HANDLE) << name << " " << handle;
      EXPECT_NE(std::string(luwu_last_error()), "") << name;
    }
    EXPECT_EQ(luwu_wait(handle, 0), LUWU_E_BAD_HANDLE);
    EXPECT_EQ(luwu_test(handle), LUWU_E_BAD_HANDLE);
    EXPECT_EQ(luwu_push_inplace_end(handle), LUWU_E_BAD_HANDLE);
  }
}

TEST_F(CApiMisuse, AnotherAbiVersionIsRefused) {
  EXPECT_EQ(luwu_init(0), LUWU_E_ABI_VERSION);
  EXPECT_EQ(luwu_init(LUWU_ABI_VERSION + 1), LUWU_E_ABI_VERSION);
  EXPECT_EQ(luwu_init(LUWU_ABI_VERSION), LUWU_OK);
}

TEST_F(CApiMisuse, StatusNamesCoverEveryCodeAndForeignNumbers) {
  EXPECT_STREQ(luwu_strerror(LUWU_OK), "ok");
  EXPECT_STREQ(luwu_strerror(LUWU_IN_PROGRESS), "in progress");
  EXPECT_STREQ(luwu_strerror(LUWU_E_WORKER_LOST), "worker lost");
  EXPECT_STREQ(luwu_strerror(-12345), "unknown error");
  EXPECT_STREQ(luwu_strerror(12345), "unknown error");
  EXPECT_STREQ(luwu_version(), "0.1.0");
}

TEST_F(CApiMisuse, ArgumentsOfJobDeleteAreChecked) {
  EXPECT_EQ(luwu_job_delete(nullptr, "job", 0, kTimeoutMs), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_job_delete("", "job", 0, kTimeoutMs), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_job_delete("127.0.0.1:1", nullptr, 0, kTimeoutMs), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_job_delete("127.0.0.1:1", "job", 2, kTimeoutMs), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_job_delete("127.0.0.1:1", "job", 0, kTimeoutMs), LUWU_E_NODE_LOST);
  EXPECT_NE(std::string(luwu_last_error()).find("127.0.0.1:1"), std::string::npos);
}

TEST_F(CApiMisuse, LogSinkLevelIsChecked) {
  const luwu_log_sink sink = [](int32_t, const char*, void*) {};
  EXPECT_EQ(luwu_set_log_sink(sink, nullptr, -1), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_set_log_sink(sink, nullptr, 4), LUWU_E_INVALID_ARGUMENT);
  EXPECT_EQ(luwu_set_log_sink(sink, nullptr, 0), LUWU_OK);
  EXPECT_EQ(luwu_set_log_sink(nullptr, nullptr, 99), LUWU_OK);
}

// A complete, valid set of options that each case spoils in one place. No daemon is asked: every
// fault is found before.
struct Options {
  uint64_t shape[1] = {8};
  luwu_tensor_spec tensor = {};
  luwu_layer_spec layer = {};
  luwu_job_spec job = {};
  luwu_open_options open = {};

  Options() {
    tensor.struct_size = sizeof tensor;
    tensor.name = "t";
    tensor.shape = shape;
    tensor.dims = 1;
    tensor.trainable = 1;
    layer.struct_size = sizeof layer;
    layer.tensor_count = 1;
    layer.name = "l";
    layer.tensors = &tensor;
    layer.elements = 8;
    job.struct_size = sizeof job;
    job.world_size = 1;
    job.name = "job";
    job.layers = &layer;
    job.layer_count = 1;
    job.groups = 1;
    job.optimizer = LUWU_ADAMW;
    job.served_dtype = LUWU_BFLOAT16;
    job.gradient_dtype = LUWU_BFLOAT16;
    job.reduction = LUWU_MEAN;
    job.on_non_finite = LUWU_NON_FINITE_SKIP;
    job.keep_undo_state = 1;
    job.overflow_bytes = UINT64_MAX;
    open.struct_size = sizeof open;
    open.endpoints = "127.0.0.1:1";
    open.job = &job;
    open.timeout_ms = 200;
    open.node_timeout_ms = 100;
  }
  Options(const Options&) = delete;
};

struct SpoiledCase {
  const char* name;
  std::function<void(Options&)> spoil;
  int32_t code;
  const char* text;
};

void ExpectRefused(const std::vector<SpoiledCase>& cases) {
  for (const SpoiledCase& c : cases) {
    Options options;
    c.spoil(options);
    luwu_session session = 77;
    EXPECT_EQ(luwu_session_open(&options.open, &session), c.code) << c.name << luwu_last_error();
    EXPECT_EQ(session, 0u) << c.name;
    EXPECT_NE(std::string(luwu_last_error()).find(c.text), std::string::npos)
        << c.name << ": " << luwu_last_error();
  }
}

TEST_F(CApiMisuse, OpenRefusesSpoiledOptions) {
  ExpectRefused({
      {"options size", [](Options& o) { o.open.struct_size -= 4; }, LUWU_E_BAD_STRUCT, "options"},
      {"options grown", [](Options& o) { o.open.struct_size += 8; }, LUWU_E_BAD_STRUCT, "options"},
      {"options size 0", [](Options& o) { o.open.struct_size = 0; }, LUWU_E_BAD_STRUCT, "options"},
      {"must_train", [](Options& o) { o.open.must_train = 2; }, LUWU_E_INVALID_ARGUMENT,
       "must_train"},
      {"no endpoints", [](Options& o) { o.open.endpoints = nullptr; }, LUWU_E_INVALID_ARGUMENT,
       "endpoints"},
      {"empty endpoints", [](Options& o) { o.open.endpoints = " , "; }, LUWU_E_INVALID_ARGUMENT,
       "endpoints"},
      {"no job", [](Options& o) { o.open.job = nullptr; }, LUWU_E_INVALID_ARGUMENT, "job"},
      {"rank", [](Options& o) { o.open.rank = 1; }, LUWU_E_INVALID_ARGUMENT, "rank 1"},
      {"transport", [](Options& o) { o.open.transport = 4; }, LUWU_E_INVALID_ARGUMENT, "transport"},
      {"verify", [](Options& o) { o.open.verify_served_crc = 3; }, LUWU_E_INVALID_ARGUMENT,
       "verify"},
      {"connections", [](Options& o) { o.open.tcp_connections = 1000; }, LUWU_E_INVALID_ARGUMENT,
       "1000"},
      {"fault plan", [](Options& o) { o.open.fault_plan = "nonsense"; }, LUWU_E_INVALID_ARGUMENT,
       ""},
  });
}

TEST_F(CApiMisuse, OpenRefusesSpoiledJobs) {
  ExpectRefused({
      {"job size", [](Options& o) { o.job.struct_size = 4; }, LUWU_E_BAD_STRUCT, "job"},
      {"job name", [](Options& o) { o.job.name = nullptr; }, LUWU_E_INVALID_ARGUMENT, "name"},
      {"bad job name", [](Options& o) { o.job.name = "a/b"; }, LUWU_E_INVALID_ARGUMENT, ""},
      {"no layers", [](Options& o) { o.job.layers = nullptr; }, LUWU_E_INVALID_ARGUMENT, "layers"},
      {"layer count 0", [](Options& o) { o.job.layer_count = 0; }, LUWU_E_INVALID_ARGUMENT, ""},
      {"layer count", [](Options& o) { o.job.layer_count = ~0u; }, LUWU_E_INVALID_ARGUMENT,
       "layers"},
      {"optimizer", [](Options& o) { o.job.optimizer = 0; }, LUWU_E_INVALID_ARGUMENT, "optimizer"},
      {"served float64", [](Options& o) { o.job.served_dtype = LUWU_FLOAT64; }, LUWU_E_UNSUPPORTED,
       ""},
      {"served 0", [](Options& o) { o.job.served_dtype = 0; }, LUWU_E_INVALID_ARGUMENT,
       "served_dtype"},
      {"gradient 257", [](Options& o) { o.job.gradient_dtype = 257; }, LUWU_E_INVALID_ARGUMENT,
       "gradient_dtype"},
      {"reduction", [](Options& o) { o.job.reduction = 7; }, LUWU_E_INVALID_ARGUMENT, "reduction"},
      {"non-finite", [](Options& o) { o.job.on_non_finite = -1; }, LUWU_E_INVALID_ARGUMENT,
       "on_non_finite"},
      {"undo 2", [](Options& o) { o.job.keep_undo_state = 2; }, LUWU_E_INVALID_ARGUMENT,
       "keep_undo_state"},
      {"world 0", [](Options& o) { o.job.world_size = 0; }, LUWU_E_INVALID_ARGUMENT, ""},
      {"accumulates", [](Options& o) { o.job.accumulates = 2; }, LUWU_E_INVALID_ARGUMENT,
       "job.accumulates is 2"},
  });
}

TEST_F(CApiMisuse, OpenRefusesSpoiledOptimizerAndUpdateOptions) {
  const int32_t wrong = LUWU_E_INVALID_ARGUMENT;
  ExpectRefused({
      {"optimizer", [](Options& o) { o.job.optimizer = 6; }, wrong, "job.optimizer"},
      {"mode", [](Options& o) { o.job.update_mode = 4; }, wrong, "job.update_mode"},
      {"held float16", [](Options& o) { o.job.held_dtype = LUWU_FLOAT16; }, wrong, "held_dtype"},
      {"held, immediate", [](Options& o) { o.job.held_dtype = LUWU_BFLOAT16; }, wrong,
       "held_dtype bfloat16 without held sums"},
      {"scope", [](Options& o) { o.job.clip_scope = 5; }, wrong, "job.clip_scope"},
      {"clipping, immediate",
       [](Options& o) {
         o.job.clip_scope = LUWU_CLIP_GLOBAL;
         o.job.update_mode = LUWU_UPDATE_IMMEDIATE;
       },
       wrong, "clip_scope global needs"},
      {"precision", [](Options& o) { o.job.state_precision = 4; }, wrong, "job.state_precision"},
      {"masters", [](Options& o) { o.job.master_format = 3; }, wrong, "job.master_format"},
      {"split fp32",
       [](Options& o) {
         o.job.master_format = LUWU_MASTER_SPLIT;
         o.job.served_dtype = LUWU_FLOAT32;
       },
       wrong, "served_dtype bfloat16"},
      {"amsgrad 2", [](Options& o) { o.job.amsgrad = 2; }, wrong, "job.amsgrad"},
      {"amsgrad of sgd",
       [](Options& o) {
         o.job.amsgrad = 1;
         o.job.optimizer = LUWU_SGD;
       },
       wrong, "amsgrad"},
      {"amsgrad in 8 bits",
       [](Options& o) {
         o.job.amsgrad = 1;
         o.job.state_precision = LUWU_STATE_BLOCKWISE8;
       },
       wrong, "maximum"},
      {"initial", [](Options& o) { o.job.initial_accumulator = 1; }, wrong, "initial_accumulator"},
      {"scale", [](Options& o) { o.job.loss_scale_initial = -1; }, wrong, "initial_scale"},
      {"backoff",
       [](Options& o) {
         o.job.loss_scale_initial = 8;
         o.job.loss_scale_backoff_factor = 2;
       },
       wrong, "backoff_factor"},
      {"scaling, immediate",
       [](Options& o) {
         o.job.loss_scale_initial = 8;
         o.job.update_mode = LUWU_UPDATE_IMMEDIATE;
       },
       wrong, "loss scaling"},
      {"speculative without undo",
       [](Options& o) {
         o.job.update_mode = LUWU_UPDATE_SPECULATIVE;
         o.job.keep_undo_state = 0;
       },
       wrong, "speculative"},
  });
}

TEST_F(CApiMisuse, DeferredUpdatesComeWithClippingAndScalingOfThemselves) {
  ExpectRefused({
      // Valid, so that only the missing daemon is left to complain about.
      {"clipping", [](Options& o) { o.job.clip_scope = LUWU_CLIP_LAYER; }, LUWU_E_NODE_LOST, ""},
      {"scaling", [](Options& o) { o.job.loss_scale_initial = 8; }, LUWU_E_NODE_LOST, ""},
      {"no undo state",
       [](Options& o) {
         o.job.clip_scope = LUWU_CLIP_GROUP;
         o.job.keep_undo_state = 0;
       },
       LUWU_E_NODE_LOST, ""},
  });
}

TEST_F(CApiMisuse, OpenRefusesSpoiledLayersAndTensors) {
  ExpectRefused({
      {"layer size", [](Options& o) { o.layer.struct_size = 1; }, LUWU_E_BAD_STRUCT, "layers[0]"},
      {"layer name", [](Options& o) { o.layer.name = nullptr; }, LUWU_E_INVALID_ARGUMENT,
       "layers[0]"},
      {"layer name not UTF-8", [](Options& o) { o.layer.name = "\xff"; }, LUWU_E_INVALID_ARGUMENT,
       "UTF-8"},
      {"no tensors", [](Options& o) { o.layer.tensors = nullptr; }, LUWU_E_INVALID_ARGUMENT,
       "tensors"},
      {"tensor size", [](Options& o) { o.tensor.struct_size = 1; }, LUWU_E_BAD_STRUCT,
       "layers[0].tensors[0]"},
      {"tensor name", [](Options& o) { o.tensor.name = nullptr; }, LUWU_E_INVALID_ARGUMENT,
       "tensors[0]"},
      {"overlong UTF-8", [](Options& o) { o.tensor.name = "\xc0\x80"; }, LUWU_E_INVALID_ARGUMENT,
       "UTF-8"},
      {"no shape", [](Options& o) { o.tensor.shape = nullptr; }, LUWU_E_INVALID_ARGUMENT, "shape"},
      {"dims", [](Options& o) { o.tensor.dims = 65; }, LUWU_E_INVALID_ARGUMENT, "shape"},
      {"zero shape", [](Options& o) { o.shape[0] = 0; }, LUWU_E_INVALID_ARGUMENT, ""},
      {"trainable 2", [](Options& o) { o.tensor.trainable = 2; }, LUWU_E_INVALID_ARGUMENT,
       "trainable"},
      {"beyond the layer", [](Options& o) { o.tensor.offset = 1; }, LUWU_E_INVALID_ARGUMENT, ""},
      {"group", [](Options& o) { o.tensor.group = 1; }, LUWU_E_INVALID_ARGUMENT, "group"},
  });
}

TEST_F(CApiMisuse, OpenRefusesNullPointers) {
  luwu_session session = 0;
  EXPECT_EQ(luwu_session_open(nullptr, &session), LUWU_E_INVALID_ARGUMENT);
  const Options options;
  EXPECT_EQ(luwu_session_open(&options.open, nullptr), LUWU_E_INVALID_ARGUMENT);
}

TEST_F(CApiMisuse, NoDaemonAtTheEndpointIsNodeLostNamingIt) {
  const Options options;
  luwu_session session = 0;
  EXPECT_EQ(luwu_session_open(&options.open, &session), LUWU_E_NODE_LOST);
  EXPECT_NE(std::string(luwu_last_error()).find("127.0.0.1:1"), std::string::npos)
      << luwu_last_error();
}

TEST_F(CApiMisuse, ErrorTextBelongsToTheCallingThread) {
  EXPECT_EQ(luwu_wait(1, 0), LUWU_E_BAD_HANDLE);
  const std::string here = luwu_last_error();
  std::string there = "unset";
  std::thread([&] { there = luwu_last_error(); }).join();
  EXPECT_EQ(there, "");
  EXPECT_EQ(luwu_last_error(), here);
}

TEST_F(CApiMisuse, ForkedChildIsRefused) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int failures = luwu_init(LUWU_ABI_VERSION) != LUWU_E_STATE;
    for (const auto& [name, call] : SessionCalls()) failures += call(0) != LUWU_E_STATE;
    failures += luwu_wait(0, 0) != LUWU_E_STATE;
    failures += luwu_test(0) != LUWU_E_STATE;
    failures += std::strlen(luwu_last_error()) == 0;
    ::_exit(failures);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
