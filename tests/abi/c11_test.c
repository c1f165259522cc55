/* luwu.h under a strict C11 compiler; sizes and offsets of ABI level 1. Offsets never change; a
 * struct that grows gets a new size, and the one before goes to kFormerSizes in c_structs.h. */
#include <luwu/luwu.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define OFFSET(type, field, bytes) \
  _Static_assert(offsetof(type, field) == (bytes), "offset of " #type "." #field)

SIZE(luwu_session, 8);
SIZE(luwu_op, 8);
SIZE(luwu_tensor_spec, 40);
OFFSET(luwu_tensor_spec, shape, 16);
OFFSET(luwu_tensor_spec, offset, 32);
SIZE(luwu_layer_spec, 32);
OFFSET(luwu_layer_spec, elements, 24);
SIZE(luwu_job_spec, 168);
OFFSET(luwu_job_spec, layers, 16);
OFFSET(luwu_job_spec, optimizer, 32);
OFFSET(luwu_job_spec, slots_per_worker, 60);
OFFSET(luwu_job_spec, overflow_bytes, 72);
OFFSET(luwu_job_spec, update_mode, 80); /* the first field that 80 bytes do not have */
OFFSET(luwu_job_spec, rounding_seed, 104);
OFFSET(luwu_job_spec, loss_scale_growth_interval, 144);
OFFSET(luwu_job_spec, durable_every, 152); /* the first field that 152 bytes do not have */
OFFSET(luwu_job_spec, memory_bytes, 160);
SIZE(luwu_hyper, 80);
OFFSET(luwu_hyper, dampening, 56);
OFFSET(luwu_hyper, lr_decay, 64);
SIZE(luwu_open_options, 96);
OFFSET(luwu_open_options, restart_count, 24);
OFFSET(luwu_open_options, fault_plan, 48);
OFFSET(luwu_open_options, must_train, 60); /* was reserved, and 0 */
OFFSET(luwu_open_options, rdma, 64);       /* the first field that 64 bytes do not have */
OFFSET(luwu_open_options, tls_ca, 72);     /* the first field that 72 bytes do not have */
SIZE(luwu_session_info, 72);
OFFSET(luwu_session_info, operations, 52);
OFFSET(luwu_session_info, loss_scale, 56);
OFFSET(luwu_session_info, rolled_back_step_plus_1, 64);
SIZE(luwu_gradient_check, 24);
SIZE(luwu_device_push, 32);
OFFSET(luwu_device_push, scale, 16);
SIZE(luwu_device_info, 424);
OFFSET(luwu_device_info, pinned_bytes, 16);
OFFSET(luwu_device_info, name, 40);
SIZE(luwu_commit_result, 552);
OFFSET(luwu_commit_result, culprit, 16);
OFFSET(luwu_commit_result, grad_norm, 528);
SIZE(luwu_segment, 32);
OFFSET(luwu_segment, count, 24);
SIZE(luwu_view_piece, 24);
SIZE(luwu_slot_piece, 24);

_Static_assert(LUWU_E_INTERNAL == -600 && LUWU_E_CORRUPT == -500 && LUWU_E_NODE_LOST == -401 &&
                   LUWU_E_DEADLINE == -300 && LUWU_E_STATE == -200 && LUWU_IN_PROGRESS == 1,
               "error numbers");

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  printf("failed: %s (%s)\n", what, luwu_last_error());
  ++failures;
}

int main(void) {
  expect(strcmp(luwu_last_error(), "") == 0, "no error before the first call");
  expect(luwu_init(LUWU_ABI_VERSION) == LUWU_OK, "init");
  expect(luwu_init(LUWU_ABI_VERSION) == LUWU_OK, "init twice");
  expect(luwu_init(99) == LUWU_E_ABI_VERSION, "init of another ABI");
  expect(strcmp(luwu_strerror(LUWU_E_NODE_LOST), "node lost") == 0, "strerror");
  expect(luwu_version() != NULL && luwu_version()[0] != '\0', "version");
  expect(luwu_session_close(0) == LUWU_E_BAD_HANDLE, "close of no session");
  expect(strlen(luwu_last_error()) > 0, "error text");
  return failures == 0 ? 0 : 1;
}
