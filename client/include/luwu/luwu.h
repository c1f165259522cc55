/* LuWu client library: C ABI.
 *
 * Conventions
 *  - Every function returns 0 (LUWU_OK), LUWU_IN_PROGRESS where stated, or a negative luwu_status.
 *    luwu_last_error() gives the text of the calling thread's last failure.
 *  - Handles are 64-bit values with a generation. A stale, foreign or zero handle gives
 *    LUWU_E_BAD_HANDLE, never a crash.
 *  - Every struct passed in begins with `struct_size`, set by the caller to sizeof. Fields are only
 *    ever appended: the sizes of earlier releases of this ABI level are accepted, and 0 in a field
 *    means what its comment says about 0, which is also how a caller is served that does not have
 *    the field. Any other size gives LUWU_E_BAD_STRUCT. Reserved fields are zero.
 *  - Strings are NUL-terminated UTF-8. Text out goes to a caller's buffer: (char *buffer, uint64_t
 *    capacity); it is always terminated and cut when too long.
 *  - Buffers stay the caller's. Each function says until when they must live.
 *  - Every wait has a timeout in milliseconds. A timeout gives LUWU_E_DEADLINE and is never
 * success.
 *  - All functions may be called from any thread. After fork() the child gets LUWU_E_STATE.
 *  - The library never exits, throws, prints, or installs signal handlers.
 */
#ifndef LUWU_LUWU_H_
#define LUWU_LUWU_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LUWU_API __attribute__((visibility("default")))
#else
#define LUWU_API
#endif

/* Level of this header. luwu_init() refuses a library that does not know it. */
#define LUWU_ABI_VERSION 1

/* The range of an error says what to rebuild: -1xx fix the call; -2xx wrong state for the call;
 * -3xx repeat the same call; -4xx open a new session; -5xx data is damaged; -6xx a LuWu defect. */
typedef enum luwu_status {
  LUWU_OK = 0,
  LUWU_IN_PROGRESS = 1,
  LUWU_E_INVALID_ARGUMENT = -100,
  LUWU_E_BAD_HANDLE = -101,
  LUWU_E_BAD_STRUCT = -102,
  LUWU_E_ABI_VERSION = -103,
  LUWU_E_UNSUPPORTED = -104,
  LUWU_E_NOT_FOUND = -105,
  LUWU_E_SCHEMA_MISMATCH = -106,
  LUWU_E_PERMISSION = -107,
  LUWU_E_STATE = -200,
  LUWU_E_LAYER_CLOSED = -201,
  LUWU_E_STALE_VERSION = -202,
  LUWU_E_STEP_MISMATCH = -203,
  LUWU_E_RANK_TAKEN = -204,
  LUWU_E_RESOURCE_EXHAUSTED = -205,
  LUWU_E_ALREADY_EXISTS = -206,
  LUWU_E_DEADLINE = -300,
  LUWU_E_WORKER_LOST = -301,
  LUWU_E_UNAVAILABLE = -302,
  LUWU_E_CANCELLED = -303,
  LUWU_E_FENCED = -400,
  LUWU_E_NODE_LOST = -401,
  LUWU_E_STALE_EPOCH = -402,
  LUWU_E_JOB_FAILED = -403,
  /* The job has gone back to a durable point (a daemon was restarted, a checkpoint restored):
   * open a new session and go on with its current_step. */
  LUWU_E_ROLLED_BACK = -404,
  LUWU_E_CORRUPT = -500,
  LUWU_E_INTERNAL = -600
} luwu_status;

typedef enum luwu_dtype {
  LUWU_FLOAT32 = 1,
  LUWU_BFLOAT16 = 2,
  LUWU_FLOAT16 = 3,
  LUWU_FLOAT64 = 4 /* refused everywhere with LUWU_E_UNSUPPORTED */
} luwu_dtype;

/* Each in the operation order of its torch.optim namesake (Lion: of its paper). */
typedef enum luwu_optimizer {
  LUWU_ADAMW = 1,
  LUWU_SGD = 2,
  LUWU_ADAM = 3, /* weight decay is added to the gradient */
  LUWU_LION = 4,
  LUWU_ADAGRAD = 5
} luwu_optimizer;
/* Of all optimizer state but the masters. 16 and 8 bits are rounded stochastically. */
typedef enum luwu_state_precision {
  LUWU_STATE_FLOAT32 = 1,
  LUWU_STATE_BFLOAT16 = 2,
  LUWU_STATE_BLOCKWISE8 = 3 /* 8 bits relative to the largest of a block of 256 elements */
} luwu_state_precision;
typedef enum luwu_master_format {
  LUWU_MASTER_FLOAT32 = 1,
  LUWU_MASTER_SPLIT = 2 /* fp32 as served bfloat16 copy plus the 16 bits that it lacks */
} luwu_master_format;
/* When the gradients of a step are applied. */
typedef enum luwu_update_mode {
  LUWU_UPDATE_AUTO = 0,       /* deferred with clipping or loss scaling, else immediate */
  LUWU_UPDATE_IMMEDIATE = 1,  /* each shard as soon as its last gradient is in */
  LUWU_UPDATE_DEFERRED = 2,   /* after the whole step's norm and finiteness are known */
  LUWU_UPDATE_SPECULATIVE = 3 /* at once, and again when the decision calls for it: same bits */
} luwu_update_mode;
/* Which gradients share one norm that is limited to luwu_hyper.max_norm. */
typedef enum luwu_clip_scope {
  LUWU_CLIP_NONE = 1,
  LUWU_CLIP_GLOBAL = 2,
  LUWU_CLIP_GROUP = 3,
  LUWU_CLIP_LAYER = 4
} luwu_clip_scope;
/* What a commit has reached when it answers: its step survives ... */
typedef enum luwu_durability {
  LUWU_MEMORY = 1, /* ... the workers */
  LUWU_LOGGED = 2, /* ... and the daemons' processes */
  LUWU_SYNCED = 3  /* ... and the machines' power */
} luwu_durability;
typedef enum luwu_reduction { LUWU_SUM = 1, LUWU_MEAN = 2 } luwu_reduction;
typedef enum luwu_non_finite { LUWU_NON_FINITE_SKIP = 1, LUWU_NON_FINITE_FAIL = 2 } luwu_non_finite;
typedef enum luwu_transport {
  LUWU_TRANSPORT_AUTO =
      0, /* shm for a daemon on this host, else verbs where both ends can, else tcp */
  LUWU_TRANSPORT_SHM = 1,
  LUWU_TRANSPORT_TCP = 2,
  LUWU_TRANSPORT_VERBS = 3 /* RDMA */
} luwu_transport;
typedef enum luwu_outcome { LUWU_APPLIED = 1, LUWU_SKIPPED = 2, LUWU_FAILED = 3 } luwu_outcome;
/* Moments are the optimizer's state tensors in torch's order: exp_avg, exp_avg_sq, max_exp_avg_sq;
 * momentum_buffer; sum. */
typedef enum luwu_quantity {
  LUWU_MASTER = 1,
  LUWU_MOMENT1 = 2,
  LUWU_MOMENT2 = 3,
  LUWU_MOMENT3 = 4
} luwu_quantity;

typedef uint64_t luwu_session; /* one worker's membership in one job, on all nodes */
typedef uint64_t luwu_op;      /* one asynchronous fetch or push */

/* ---- library --------------------------------------------------------------------------------- */

/* First call. `abi_version` is LUWU_ABI_VERSION. Idempotent. */
LUWU_API int32_t luwu_init(uint32_t abi_version);
/* "0.1.0"; static. */
LUWU_API const char* luwu_version(void);
/* "worker lost"; static. */
LUWU_API const char* luwu_strerror(int32_t status);
/* Text of the calling thread's last failed call; valid until its next call. Never NULL. */
LUWU_API const char* luwu_last_error(void);
/* 0 debug, 1 info, 2 warning, 3 error. `line` lives during the call. The sink may be called from
 * any thread and must not call the library. NULL removes it. */
typedef void (*luwu_log_sink)(int32_t level, const char* line, void* context);
LUWU_API int32_t luwu_set_log_sink(luwu_log_sink sink, void* context, int32_t level);

/* ---- job schema ------------------------------------------------------------------------------ */

typedef struct luwu_tensor_spec {
  uint32_t struct_size;
  uint32_t group;        /* hyper-parameter group */
  const char* name;      /* unique in the job */
  const uint64_t* shape; /* `dims` sizes, each >= 1; NULL with dims 0 means a scalar */
  uint32_t dims;
  uint32_t trainable; /* 0 or 1 */
  uint64_t offset;    /* elements from the start of the layer */
} luwu_tensor_spec;

typedef struct luwu_layer_spec {
  uint32_t struct_size;
  uint32_t tensor_count;
  const char* name;
  const luwu_tensor_spec* tensors;
  uint64_t elements;
} luwu_layer_spec;

typedef struct luwu_job_spec {
  uint32_t struct_size;
  uint32_t world_size;
  const char* name;
  const luwu_layer_spec* layers;
  uint32_t layer_count;
  uint32_t groups;
  int32_t optimizer;     /* luwu_optimizer */
  uint32_t sgd_momentum; /* 1: SGD keeps a momentum buffer */
  int32_t served_dtype;  /* luwu_dtype of weights on the wire */
  int32_t gradient_dtype;
  int32_t reduction;          /* luwu_reduction */
  int32_t on_non_finite;      /* luwu_non_finite */
  uint32_t keep_undo_state;   /* 1: immediate updates can be skipped, speculative ones need it;
                                 deferred ones do without. 0: on_non_finite must be FAIL */
  uint32_t slots_per_worker;  /* 0: default (16) */
  uint64_t shard_elements;    /* 0: default (1 Mi) */
  uint64_t overflow_bytes;    /* UINT64_MAX: default (64 MiB) */
  int32_t update_mode;        /* luwu_update_mode; 0: auto */
  int32_t held_dtype;         /* luwu_dtype of sums that wait for the decision: FLOAT32 or BFLOAT16;
                                 0: FLOAT32. For deferred and speculative updates */
  int32_t clip_scope;         /* luwu_clip_scope; 0: none */
  int32_t state_precision;    /* luwu_state_precision; 0: FLOAT32 */
  int32_t master_format;      /* luwu_master_format; 0: FLOAT32 */
  uint32_t amsgrad;           /* 1: Adam and AdamW keep max_exp_avg_sq */
  uint64_t rounding_seed;     /* of stochastic rounding */
  double initial_accumulator; /* Adagrad: its sum before the first update */
  /* Dynamic loss scale as in torch.cuda.amp.GradScaler. 0: the job has none, its loss scale is 1.
   */
  double loss_scale_initial;
  double loss_scale_growth_factor;     /* 0: default (2) */
  double loss_scale_backoff_factor;    /* 0: default (0.5) */
  uint32_t loss_scale_growth_interval; /* applied steps; 0: default (2000); UINT32_MAX: never */
  uint32_t accumulates;   /* 1: memory for the sum of each shard, so that several micro-steps can
                             be pushed before layers are closed; needs 4 bytes a parameter, except
                             where held FLOAT32 sums serve. 0: only as far as slots and
                             overflow_bytes go */
  uint32_t durable_every; /* every so many steps all state is written to disk, so that the job can
                             go back to it after a crash: a durable point. 0: never. The daemons
                             need a data directory */
  int32_t durability;     /* luwu_durability: what the commit before a point waits for, with MEMORY
                             points are made in the background; 0: MEMORY */
  uint64_t memory_bytes; /* most memory that the job takes on each node; the rest of its state is on
                            disk. 0: what the node has left */
} luwu_job_spec;

typedef struct luwu_hyper {
  uint32_t struct_size;
  uint32_t nesterov;
  double lr;
  double weight_decay;
  double beta1;
  double beta2;
  double eps;
  double momentum;
  double dampening;
  double lr_decay; /* Adagrad */
  double max_norm; /* of what clip_scope names; 0: not limited. Equal in all groups, except with
                      LUWU_CLIP_GROUP */
} luwu_hyper;

/* ---- session --------------------------------------------------------------------------------- */

typedef struct luwu_open_options {
  uint32_t struct_size;
  uint32_t rank;
  const char* endpoints;      /* "host:port[,host:port...]" of any daemons of the cluster */
  const luwu_job_spec* job;   /* create or join; copied during the call */
  uint64_t restart_count;     /* higher fences an earlier holder of the rank */
  int32_t transport;          /* luwu_transport */
  uint32_t tcp_connections;   /* or RDMA queue pairs (up to 8) per daemon; 0: default (2) */
  uint32_t verify_served_crc; /* payload CRC: 0: of whole shards over tcp; 1: always; 2: never */
  uint32_t timeout_ms;        /* of the whole call; 0: default (30000) */
  const char* fault_plan;     /* tests only: faults injected into the data plane; NULL: none */
  /* How long a node may be out of reach before calls end with LUWU_E_NODE_LOST; a call whose own
   * timeout ends earlier gives LUWU_E_DEADLINE and may be repeated. 0: default (5000). */
  uint32_t node_timeout_ms;
  /* 1: LUWU_E_JOB_FAILED, with the cause, for a job that accepts no further step: for programs that
   * mean to train. 0: it is opened, and its masters can be read. */
  uint32_t must_train;
  /* How to use RDMA: "device=mlx5_0 port=1 gid_index=3 mtu=4096 mode=event" (or busy); each word
   * may be left out. NULL or "": all of it is chosen. */
  const char* rdma;
  /* Paths of PEM files, for daemons with [tls]: the CA of their certificates; this program's own
   * certificate, which says who it is; the key of that one. All three, or all NULL: those that the
   * environment names (LUWU_TLS_CA, LUWU_TLS_CERTIFICATE, LUWU_TLS_KEY), or plain text when it
   * names none. Renewed files are read again for new connections, once a minute. */
  const char* tls_ca;
  const char* tls_certificate;
  const char* tls_key;
} luwu_open_options;

/* Creates or joins the job on every node, opens a session on each, links the data plane, and starts
 * the heartbeat. When the rank's former process is gone it is taken over. Errors name the node.
 * Frees everything it had opened when it fails. */
LUWU_API int32_t luwu_session_open(const luwu_open_options* options, luwu_session* session);
/* Waits for nothing: outstanding operations complete with LUWU_E_CANCELLED, views end. */
LUWU_API int32_t luwu_session_close(luwu_session session);

typedef struct luwu_session_info {
  uint32_t struct_size;
  uint32_t nodes;
  uint64_t current_step;  /* the step to begin next */
  uint64_t fetched_bytes; /* payload bytes since open */
  uint64_t pushed_bytes;
  uint64_t retries;    /* data plane requests repeated after a failure */
  uint32_t created;    /* this call created the job */
  uint32_t loaded;     /* initial weights are complete on all nodes */
  uint32_t shm_nodes;  /* nodes reached by shared memory; the others by tcp */
  uint32_t operations; /* not yet finished */
  /* What to multiply the loss with: of the open step, else of the step to begin (after opening a
   * session on a running job known only once a step has begun). 1 without loss scaling. */
  double loss_scale;
  /* After LUWU_E_ROLLED_BACK: the step that the job went back to, plus 1; 0 when it did not, or
   * when that was not known yet. */
  uint64_t rolled_back_step_plus_1;
} luwu_session_info;
/* Sets *info; `info->struct_size` is input. Local: no RPC except that current_step and loaded are
 * as of the last reply from the daemons. */
LUWU_API int32_t luwu_session_get_info(luwu_session session, luwu_session_info* info);

/* ---- job ------------------------------------------------------------------------------------- */

/* Deletes `job` on every daemon of the cluster and frees its memory; needs no session. `endpoints`
 * as in luwu_open_options; TLS as the environment says. Without `force` (0 or 1) a job with open
 * sessions is refused (LUWU_E_STATE) and left as it is; with it their calls end with
 * LUWU_E_STALE_EPOCH. A daemon without the job is no error as long as another had it, so an
 * interrupted deletion can be repeated; when none has it: LUWU_E_NOT_FOUND. Other errors name the
 * daemons that kept it. The timeout (0: 30000) includes waiting for a daemon that does not answer.
 */
LUWU_API int32_t luwu_job_delete(const char* endpoints, const char* job, uint32_t force,
                                 uint32_t timeout_ms);

/* ---- loading and reading masters ------------------------------------------------------------- */

/* Writes fp32 masters [offset, offset + count) of `layer`, in elements. Allowed until a worker
 * begins step 0. `values` need only live during the call. */
LUWU_API int32_t luwu_load(luwu_session session, uint32_t layer, uint64_t offset,
                           const float* values, uint64_t count, uint32_t timeout_ms);
/* All masters are written: version 0 becomes readable. Without `allow_missing`, elements of tensors
 * that were never written are an error that names the first such tensor. */
LUWU_API int32_t luwu_finish_load(luwu_session session, uint32_t allow_missing,
                                  uint32_t timeout_ms);
/* Waits until version 0 (or later) of all layers is readable: what ranks that do not load call. */
LUWU_API int32_t luwu_wait_loaded(luwu_session session, uint32_t timeout_ms);
/* Reads `count` fp32 values from `offset` of a layer's master or moments, between two commits. */
LUWU_API int32_t luwu_read(luwu_session session, uint32_t layer, int32_t quantity, uint64_t offset,
                           float* values, uint64_t count, uint32_t timeout_ms);

/* ---- step ------------------------------------------------------------------------------------ */

/* Opens `step` with one set of hyper-parameters per group. All workers must pass equal values. */
LUWU_API int32_t luwu_begin_step(luwu_session session, uint64_t step, const luwu_hyper* groups,
                                 uint32_t group_count, uint32_t timeout_ms);

typedef struct luwu_commit_result {
  uint32_t struct_size;
  int32_t outcome;    /* luwu_outcome */
  int32_t durability; /* luwu_durability that this step has reached on all nodes */
  uint32_t reserved;
  char culprit[512]; /* outcome skipped or failed: what and whose, in words; else "" */
  /* Of all gradients of the step over all nodes, after reduction and unscaling, before clipping.
   * NaN when they are not finite. */
  double grad_norm;
  double clip_factor; /* LUWU_CLIP_GLOBAL: what gradients were multiplied with; else 1 */
  double loss_scale;  /* of the next step; 1 without loss scaling */
} luwu_commit_result;
/* Ends `step`: waits for this session's pushes, then for the decision of all nodes. With deferred
 * updates the new versions appear layer by layer afterwards, first layer first: a fetch waits for
 * the ones it needs. Every trainable
 * layer must have been closed by this worker (LUWU_E_STATE names one that was not). Idempotent:
 * after LUWU_E_WORKER_LOST or LUWU_E_DEADLINE call it again. */
LUWU_API int32_t luwu_commit(luwu_session session, uint64_t step, luwu_commit_result* result,
                             uint32_t timeout_ms);

/* ---- fetch ----------------------------------------------------------------------------------- */

/* Host memory for a range of a layer. */
typedef struct luwu_segment {
  uint32_t struct_size;
  int32_t dtype;   /* luwu_dtype of the memory; converted when the wire's differs */
  void* data;      /* aligned to its dtype */
  uint64_t offset; /* elements from the start of the layer */
  uint64_t count;  /* elements */
} luwu_segment;

/* Copies version `version` of `layer` into the segments (any subset of the layer; they must not
 * overlap). Waits until the version exists. Never gives another version: an older one than the
 * daemon still has is LUWU_E_STALE_VERSION. A frozen layer has one content for all versions. */
LUWU_API int32_t luwu_fetch(luwu_session session, uint32_t layer, uint64_t version,
                            const luwu_segment* segments, uint32_t segment_count,
                            uint32_t timeout_ms);
/* Same, in the background, in call order. `segments` is copied; the memory it names must live until
 * the operation is done. */
LUWU_API int32_t luwu_fetch_async(luwu_session session, uint32_t layer, uint64_t version,
                                  const luwu_segment* segments, uint32_t segment_count,
                                  uint32_t timeout_ms, luwu_op* op);

/* A contiguous piece of a served layer in shared memory. */
typedef struct luwu_view_piece {
  const void* data;
  uint64_t offset; /* elements from the start of the layer */
  uint64_t count;
} luwu_view_piece;
/* No copy: gives the pieces of the layer where they lie, in the served dtype, adjacent ones joined.
 * All nodes must be reached by shm, else LUWU_E_UNSUPPORTED. *piece_count: in capacity, out number
 * (LUWU_E_INVALID_ARGUMENT with the number when too small). The bytes stay as they are until this
 * worker has closed the layer in the step after `version`; then or at session close the view is
 * dead. `verify_served_crc` 1 checks every piece once. */
LUWU_API int32_t luwu_fetch_view(luwu_session session, uint32_t layer, uint64_t version,
                                 luwu_view_piece* pieces, uint32_t* piece_count,
                                 uint32_t timeout_ms);

/* ---- push ------------------------------------------------------------------------------------ */

#define LUWU_PUSH_CLOSE 1u /* last contribution of this worker to the layer in this step */

/* Gives this worker's gradient of `layer` for the open step. The segments need not cover gaps or
 * frozen tensors, but each trainable tensor wholly; what is not covered is zero. Micro-batches:
 * push the layer several times, the last one with LUWU_PUSH_CLOSE. Waits for credits
 * (back-pressure). Memory must live until the call returns. */
LUWU_API int32_t luwu_push(luwu_session session, uint32_t layer, const luwu_segment* segments,
                           uint32_t segment_count, uint32_t flags, uint32_t timeout_ms);
/* Same, in the background, in call order; the memory must live and stay unchanged until the
 * operation is done. */
LUWU_API int32_t luwu_push_async(luwu_session session, uint32_t layer, const luwu_segment* segments,
                                 uint32_t segment_count, uint32_t flags, uint32_t timeout_ms,
                                 luwu_op* op);
/* Closes `layer` without (further) gradient: "absent" when nothing was pushed in this step; its
 * elements are then not updated at all, as torch does for parameters whose grad is None. */
LUWU_API int32_t luwu_close_layer(luwu_session session, uint32_t layer, uint32_t timeout_ms);

/* Push in place: reserves the slots of one shard run and gives their memory. */
typedef struct luwu_slot_piece {
  void* data;      /* write `count` elements of the job's gradient dtype here */
  uint64_t offset; /* elements from the start of the layer */
  uint64_t count;
} luwu_slot_piece;
/* Gives memory for the next shards of `layer` from element `offset` on (a multiple of
 * shard_elements): as many as there are credits, at least one, at most *piece_count. The worker
 * fills all pieces and calls luwu_push_inplace_end before it reserves more from the same thread. */
LUWU_API int32_t luwu_push_inplace_begin(luwu_session session, uint32_t layer, uint64_t offset,
                                         luwu_slot_piece* pieces, uint32_t* piece_count,
                                         uint32_t flags, uint32_t timeout_ms, luwu_op* op);
/* Sends what was filled; `op` is then waited for like any other. */
LUWU_API int32_t luwu_push_inplace_end(luwu_op op);

/* ---- GPU memory ------------------------------------------------------------------------------ */

/* These calls need NVIDIA's driver (libcuda.so.1) on the host, nothing else, and give
 * LUWU_E_UNSUPPORTED with what is missing where they cannot work. All segments of a call name
 * memory of one GPU (cudaMalloc, cudaMallocAsync, PyTorch's allocator), and all calls of a session
 * the same GPU: else LUWU_E_INVALID_ARGUMENT. Bytes go through pinned memory of the library, which
 * is bounded and allocated at the session's first such call. The host never waits for `stream`,
 * except that an operation that failed is done only when no copy of it can run any more. Streams
 * that are being captured into a CUDA graph cannot be used. Errors of CUDA are LUWU_E_STATE, naming
 * the CUDA call and its error; no memory is LUWU_E_RESOURCE_EXHAUSTED. */

/* A cudaStream_t or CUstream of the GPU's primary context, which is that of the CUDA runtime. NULL
 * is its default stream. A "per-thread default stream" handle means that of the thread in each
 * call. */
typedef void* luwu_stream;

/* luwu_fetch_async into GPU memory. Overwrites it after what is on `stream` at the time of this
 * call. The luwu_wait or luwu_test that returns the result LUWU_OK makes `stream` wait for the
 * weights: what is put onto it later sees them, while the host goes on at once. So start fetches
 * early and wait for them as late as possible. The memory must live until then, and after that as
 * long as `stream` has not passed that point. */
LUWU_API int32_t luwu_fetch_device(luwu_session session, uint32_t layer, uint64_t version,
                                   const luwu_segment* segments, uint32_t segment_count,
                                   luwu_stream stream, uint32_t timeout_ms, luwu_op* op);

/* Of the gradient as it was sent, in the job's gradient dtype. */
typedef struct luwu_gradient_check {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t non_finite; /* number of elements that are not finite */
  double square_sum;   /* of the others */
} luwu_gradient_check;

typedef struct luwu_device_push {
  uint32_t struct_size;
  uint32_t flags;     /* LUWU_PUSH_CLOSE */
  luwu_stream stream; /* the gradient is what this stream has written before the call */
  double scale;       /* gradients are multiplied with it on the GPU before they are rounded to the
                         wire's dtype; finite; 0: 1. Not the loss scale: the daemons divide by it */
  luwu_gradient_check* check; /* NULL, or filled in before the operation is done; must live until
                                 then. `check->struct_size` is input */
} luwu_device_push;
/* luwu_push_async from GPU memory, which must live and stay unchanged until the operation is done.
 * `scale` and `check` run as kernels on the GPU: LUWU_E_UNSUPPORTED in a library that was built
 * without nvcc. */
LUWU_API int32_t luwu_push_device(luwu_session session, uint32_t layer,
                                  const luwu_segment* segments, uint32_t segment_count,
                                  const luwu_device_push* how, uint32_t timeout_ms, luwu_op* op);

typedef struct luwu_device_info {
  uint32_t struct_size;
  uint32_t used; /* 1 after the session's first call on GPU memory; 0: nothing below is set */
  int32_t ordinal;
  uint32_t kernels;       /* 1: dtypes are converted on the GPU; 0: by the CPU, see no_kernels */
  uint64_t pinned_bytes;  /* of host memory */
  uint64_t fetched_bytes; /* into GPU memory */
  uint64_t pushed_bytes;
  char name[128];       /* of the GPU */
  char no_kernels[256]; /* why there are none; else "" */
} luwu_device_info;
/* Sets *info; `info->struct_size` is input. Local. */
LUWU_API int32_t luwu_session_get_device_info(luwu_session session, luwu_device_info* info);

/* ---- operations ------------------------------------------------------------------------------ */

/* Waits until `op` is done and releases it: returns its result. LUWU_E_DEADLINE: not done, still
 * valid. */
LUWU_API int32_t luwu_wait(luwu_op op, uint32_t timeout_ms);
/* LUWU_IN_PROGRESS, or its result (and releases it). */
LUWU_API int32_t luwu_test(luwu_op op);

/* ---- status ---------------------------------------------------------------------------------- */

/* Status snapshot of every daemon of the session's cluster as JSON (the same fields as `luwuctl
 * status -o json`). */
LUWU_API int32_t luwu_status_json(luwu_session session, char* buffer, uint64_t capacity,
                                  uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* LUWU_LUWU_H_ */
