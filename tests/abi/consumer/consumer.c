/* A program outside of the tree: one training step through the installed library.
 * Usage: consumer ENDPOINTS JOB */
#include <luwu/luwu.h>

#include <stdio.h>

#define ELEMENTS 6u
#define TIMEOUT_MS 20000u

static int check(int32_t status, const char* what) {
  if (status == LUWU_OK) return 1;
  fprintf(stderr, "%s: %s: %s\n", what, luwu_strerror(status), luwu_last_error());
  return 0;
}

static luwu_session open_session(const char* endpoints, const char* name) {
  static const uint64_t shape[2] = {2, 3};
  luwu_tensor_spec tensor = {0};
  luwu_layer_spec layer = {0};
  luwu_job_spec job = {0};
  luwu_open_options options = {0};
  luwu_session session = 0;
  tensor.struct_size = sizeof tensor;
  tensor.name = "w";
  tensor.shape = shape;
  tensor.dims = 2;
  tensor.trainable = 1;
  layer.struct_size = sizeof layer;
  layer.tensor_count = 1;
  layer.name = "layer";
  layer.tensors = &tensor;
  layer.elements = ELEMENTS;
  job.struct_size = sizeof job;
  job.world_size = 1;
  job.name = name;
  job.layers = &layer;
  job.layer_count = 1;
  job.groups = 1;
  job.optimizer = LUWU_SGD;
  job.served_dtype = LUWU_FLOAT32;
  job.gradient_dtype = LUWU_FLOAT32;
  job.reduction = LUWU_SUM;
  job.on_non_finite = LUWU_NON_FINITE_SKIP;
  job.keep_undo_state = 1;
  job.overflow_bytes = UINT64_MAX;
  options.struct_size = sizeof options;
  options.endpoints = endpoints;
  options.job = &job;
  check(luwu_session_open(&options, &session), "open");
  return session;
}

static luwu_segment whole(float* values) {
  luwu_segment segment = {0};
  segment.struct_size = sizeof segment;
  segment.dtype = LUWU_FLOAT32;
  segment.data = values;
  segment.count = ELEMENTS;
  return segment;
}

static int step(luwu_session session, float* values) {
  float gradient[ELEMENTS] = {1, 1, 1, 1, 1, 1};
  const luwu_segment from = whole(gradient);
  const luwu_segment to = whole(values);
  luwu_hyper hyper = {0};
  luwu_commit_result result = {0};
  hyper.struct_size = sizeof hyper;
  hyper.lr = 0.5;
  result.struct_size = sizeof result;
  return check(luwu_load(session, 0, 0, values, ELEMENTS, TIMEOUT_MS), "load") &&
         check(luwu_finish_load(session, 0, TIMEOUT_MS), "finish_load") &&
         check(luwu_begin_step(session, 0, &hyper, 1, TIMEOUT_MS), "begin_step") &&
         check(luwu_push(session, 0, &from, 1, LUWU_PUSH_CLOSE, TIMEOUT_MS), "push") &&
         check(luwu_commit(session, 0, &result, TIMEOUT_MS), "commit") &&
         check(luwu_fetch(session, 0, 1, &to, 1, TIMEOUT_MS), "fetch");
}

int main(int argc, char** argv) {
  float values[ELEMENTS] = {1, 2, 3, 4, 5, 6};
  luwu_session session;
  unsigned i;
  if (argc != 3 || !check(luwu_init(LUWU_ABI_VERSION), "init")) return 2;
  session = open_session(argv[1], argv[2]);
  if (session == 0 || !step(session, values) || !check(luwu_session_close(session), "close")) {
    return 1;
  }
  for (i = 0; i < ELEMENTS; ++i) {
    if (values[i] != 0.5f + (float)i) {
      fprintf(stderr, "value %u is %g\n", i, values[i]);
      return 1;
    }
  }
  printf("stepped with libluwu %s\n", luwu_version());
  return 0;
}
