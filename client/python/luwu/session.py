"""A worker's membership in a job: load, fetch, push, commit."""

from __future__ import annotations

import ctypes
import json
import math
import os
import threading
import time
import weakref
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np

from luwu import _ffi, buffers, errors
from luwu.buffers import Segments
from luwu.cstructs import c_hyper, c_job, choice, fits, optional_text, text
from luwu.devices import DeviceInfo, read_device_info
from luwu.operations import Operation, milliseconds
from luwu.optimizers import HyperParameters
from luwu.specs import DURABILITIES, JobSpec

_TRANSPORTS = {"auto": 0, "shm": 1, "tcp": 2, "verbs": 3}
_VERIFY = {"tcp": 0, "always": 1, "never": 2}
_QUANTITIES = {"master": 1, "moment1": 2, "moment2": 3, "moment3": 4}
_DURABILITIES = {number: name for name, number in DURABILITIES.items()}
_OUTCOMES = {1: "applied", 2: "skipped", 3: "failed"}
_PIECES = 256  # first guess of the number of view pieces; the library says when it is too small
_STATUS_BYTES_MAX = 64 << 20
_REOPEN_PAUSE_S = 0.2
_SLICE_S = 0.5  # how long Ctrl-C may go unnoticed


@dataclass(frozen=True)
class CommitResult:
    """How a step ended. ``outcome``: "applied", "skipped" or "failed"; ``culprit`` says why not.

    ``grad_norm``: of all gradients over all daemons, after reduction and unscaling and before
    clipping; NaN when they are not finite. ``clip_factor``: with clip scope "global", what they
    were multiplied with; else 1. ``loss_scale``: of the next step; 1 without loss scaling.
    ``durability``: what the step survives on all nodes: "memory", "logged" or "synced", see
    ``luwu.JobSpec``.
    """

    outcome: str
    culprit: str
    durability: str
    grad_norm: float = math.nan
    clip_factor: float = 1.0
    loss_scale: float = 1.0

    @property
    def applied(self) -> bool:
        return self.outcome == "applied"


@dataclass(frozen=True)
class SessionInfo:
    """Counters of a session. Bytes are payload bytes since it was opened."""

    nodes: int
    current_step: int
    fetched_bytes: int
    pushed_bytes: int
    retries: int
    created: bool
    loaded: bool
    shm_nodes: int
    operations: int
    loss_scale: float = 1.0


@dataclass(frozen=True)
class Piece:
    """A run of elements of a layer in library memory: ``array[i]`` is element ``offset + i``."""

    array: np.ndarray
    offset: int


def resolved_restart_count(restart_count: int | None) -> int:
    """``restart_count`` with its default."""
    if restart_count is None:
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restart_count


def wait(attempt: Callable[[float], Any], timeout_s: float,
         tell: Callable[[errors.LuwuError, float], None] | None = None) -> Any:
    """Calls ``attempt(seconds left)`` until it succeeds: daemons that are down come back, and jobs
    recover. After ``timeout_s`` the last error is raised that says more than that the time was up;
    errors that waiting cannot cure are raised at once. ``tell`` hears of each failed attempt, with
    the seconds that are left."""
    milliseconds(timeout_s)  # says what is wrong with it
    end = time.monotonic() + timeout_s
    former: errors.LuwuError | None = None
    while True:
        try:
            return attempt(max(end - time.monotonic(), 0.001))
        except (errors.JobFailedError, errors.FencedError):
            raise
        except (errors.RetryableError, errors.SessionLostError) as error:
            left_s = end - time.monotonic() - _REOPEN_PAUSE_S
            cut_short = isinstance(error, errors.DeadlineError) and former is not None
            if left_s <= 0:
                if cut_short and former is not None:
                    raise former from None
                raise
            former = former if cut_short else error
            if tell is not None:
                tell(error, left_s)
            time.sleep(_REOPEN_PAUSE_S)


class Session:
    """One worker's membership in one job, on all daemons. A context manager; ``close`` ends it.

    ``endpoints``: "host:port[,host:port...]" of any daemons, or a list of them. ``restart_count``
    defaults to ``$TORCHELASTIC_RESTART_COUNT``; a higher one fences an earlier holder of the rank.
    ``transport``: "auto" (shm for a daemon on this host, else RDMA where both ends can, else
    tcp), "shm", "tcp" or "verbs" (RDMA); ``rdma`` says how: "device=mlx5_0 gid_index=3" (luwu.h).
    ``tls_ca``, ``tls_certificate``, ``tls_key``: PEM files for daemons with ``[tls]``, all three;
    default: ``$LUWU_TLS_CA``, ``$LUWU_TLS_CERTIFICATE``, ``$LUWU_TLS_KEY``, else plain text.
    ``verify``: payload checksums of fetches, "tcp" (of tcp fetches only), "always" or "never".

    Layers are named by index or by name. Offsets and counts are elements; timeouts are seconds and
    end in ``DeadlineError``. All methods may be called from any thread. A buffer passed to a method
    need only live during the call; asynchronous calls hold on to theirs. After ``fork`` the child
    may not use the session (``StateError``). Errors: see ``luwu.errors``.
    """

    def __init__(self, endpoints: str | Sequence[str], job: JobSpec, rank: int, *,
                 restart_count: int | None = None, transport: str = "auto",
                 tcp_connections: int = 0, verify: str = "tcp", timeout_s: float = 30.0,
                 node_timeout_s: float = 5.0, rdma: str | None = None,
                 tls_ca: str | None = None, tls_certificate: str | None = None,
                 tls_key: str | None = None, fault_plan: str | None = None) -> None:
        restart_count = resolved_restart_count(restart_count)
        if not isinstance(endpoints, str):
            endpoints = ",".join(endpoints)
        options = _ffi.COpenOptions(
            rank=fits(rank, 32, "rank"), endpoints=text(endpoints, "endpoints"),
            job=ctypes.pointer(c_job(job)),
            restart_count=fits(restart_count, 64, "restart_count"),
            transport=choice("transport", transport, _TRANSPORTS),
            tcp_connections=fits(tcp_connections, 32, "tcp_connections"),
            verify_served_crc=choice("verify", verify, _VERIFY),
            timeout_ms=milliseconds(timeout_s), node_timeout_ms=milliseconds(node_timeout_s),
            rdma=optional_text(rdma, "rdma"), tls_ca=optional_text(tls_ca, "tls_ca"),
            tls_certificate=optional_text(tls_certificate, "tls_certificate"),
            tls_key=optional_text(tls_key, "tls_key"),
            fault_plan=optional_text(fault_plan, "fault_plan"))
        self.job = job
        self.rank = rank
        self._options = options
        # Keeps operations and their buffers alive until they are done. Must not lead back to this
        # object, since the finalizer holds it. Adding and discarding are atomic.
        self._operations: set[Operation] = set()
        self._open()

    def _open(self, timeout_s: float | None = None) -> None:
        handle, options = c_uint64(), self._options
        if timeout_s is not None:
            options = type(options).from_buffer_copy(options)
            options.timeout_ms = milliseconds(timeout_s)
        _ffi.call("luwu_session_open", ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle.value
        # Also runs when the interpreter exits, before the library's own end.
        self._finalizer = weakref.finalize(
            self, _close, self._handle, self._operations, os.getpid())

    # ---- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Leaves the job. Operations under way end with ``CancelledError``; views become invalid.
        May be called again."""
        self._finalizer()

    def reopen(self, timeout_s: float = 60.0) -> int:
        """Leaves the job if that was not done, joins it again as the same rank, and returns the
        step to go on with: what to do after ``RolledBackError`` and the other
        ``SessionLostError``s. Waits for daemons that are down and jobs that are recovering, for
        ``timeout_s`` at most, whatever timeout the session was opened with. ``JobFailedError`` when
        the job does not go on: it has failed, is lost, or was not kept."""
        self.close()
        self._options.must_train = 1
        wait(self._open, timeout_s)
        if self.info().created:
            self.close()
            raise errors.JobFailedError(
                f"job {self.job.name!r} was not kept by the daemons: it had no durable points "
                "(durable_every) or was deleted; an empty one of that name has just been made")
        return self.current_step

    def info(self) -> SessionInfo:
        """Counters and the step to begin next. No round trip."""
        info = _ffi.CSessionInfo()
        self._call("luwu_session_get_info", ctypes.byref(info))
        return SessionInfo(
            info.nodes, info.current_step, info.fetched_bytes, info.pushed_bytes, info.retries,
            bool(info.created), bool(info.loaded), info.shm_nodes, info.operations,
            info.loss_scale)

    def device_info(self) -> DeviceInfo | None:
        """The GPU whose memory this session has worked with; ``None`` before the first time."""
        return read_device_info(self._call)

    @property
    def current_step(self) -> int:
        """The step to begin next, as of the daemons' last reply. Restarted workers resume here."""
        return self.info().current_step

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss with: of the open step, else of the step to begin (after
        joining a running job, known only once a step has begun). 1 without loss scaling."""
        return self.info().loss_scale

    def status(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Status snapshot of every daemon: the fields of ``luwuctl status -o json``."""
        capacity = 64 << 10
        while True:
            text = ctypes.create_string_buffer(capacity)
            self._call("luwu_status_json", text, c_uint64(capacity), milliseconds(timeout_s))
            if len(text.value) < capacity - 1 or capacity >= _STATUS_BYTES_MAX:
                snapshot: dict[str, Any] = json.loads(text.value)
                return snapshot
            capacity *= 4  # it was cut

    # ---- loading and reading --------------------------------------------------------------------

    def load(self, layer: int | str, values: np.ndarray, offset: int = 0,
             timeout_s: float = 60.0) -> None:
        """Writes fp32 masters ``[offset, offset + values.size)``. Allowed until step 0 begins.

        ``values``: float32, C-contiguous, any shape.
        """
        pointer, count = _float_pointer(values)
        self._call("luwu_load", self._layer(layer), _u64(offset, "offset"), pointer,
                   _u64(count, "count"), milliseconds(timeout_s))

    def finish_load(self, allow_missing: bool = False, timeout_s: float = 60.0) -> None:
        """Makes version 0 readable. Tensors never written are an error unless ``allow_missing``."""
        self._call("luwu_finish_load", int(allow_missing), milliseconds(timeout_s))

    def wait_loaded(self, timeout_s: float = 60.0) -> None:
        """Waits until the loading worker has finished: what the other ranks call."""
        self._call("luwu_wait_loaded", milliseconds(timeout_s))

    def read(self, layer: int | str, quantity: str = "master", offset: int = 0,
             count: int | None = None, timeout_s: float = 60.0) -> np.ndarray:
        """fp32 values of a layer's "master", "moment1", "moment2" or "moment3", between two
        commits. Moments are torch's state tensors in their order: exp_avg, exp_avg_sq and
        max_exp_avg_sq; momentum_buffer; sum."""
        index = self._layer(layer)
        if count is None:
            count = self.job.layers[index].elements - offset
        values = np.empty(fits(count, 48, "count"), np.float32)
        pointer, _ = _float_pointer(values)
        self._call("luwu_read", index, choice("quantity", quantity, _QUANTITIES),
                   _u64(offset, "offset"), pointer, _u64(count, "count"), milliseconds(timeout_s))
        return values

    # ---- step -----------------------------------------------------------------------------------

    def begin_step(self, step: int, groups: Sequence[HyperParameters] | None = None,
                   timeout_s: float = 30.0,
                   max_norm: float | Sequence[float] = 0.0) -> None:
        """Opens ``step`` with one optimizer object per group (default: the job's, for each), of the
        job's optimizer class.

        ``max_norm``: largest norm of what the job's ``clip_scope`` names, for all groups or (scope
        "group") one for each; 0 does not limit it.
        All workers must pass equal values (``StepMismatchError``). A restarted worker may begin the
        current step again.
        """
        if groups is None:
            groups = [self.job.optimizer] * self.job.groups
        limits = [max_norm] * len(groups) if isinstance(max_norm, (int, float)) else list(max_norm)
        if len(limits) != len(groups):
            raise errors.ArgumentError(
                f"max_norm has {len(limits)} values for {len(groups)} groups")
        array = (_ffi.CHyper * len(groups))(
            *[c_hyper(self.job, values, limit) for values, limit in zip(groups, limits)])
        self._call("luwu_begin_step", _u64(step, "step"), array, len(groups),
                   milliseconds(timeout_s))

    def commit(self, step: int, timeout_s: float = 60.0) -> CommitResult:
        """Ends ``step``: waits for this worker's pushes and then for all others.

        ``WorkerLostError`` names a rank that is gone, ``DeadlineError`` what is still open; after
        either, call it again. ``StateError`` names a layer that this worker has not closed.
        """
        result = _ffi.CCommitResult()
        number, end = _u64(step, "step"), time.monotonic() + timeout_s
        milliseconds(timeout_s)  # says what is wrong with it
        # The main thread, which Ctrl-C has to reach, waits in slices; commits can be repeated.
        slice_s = _SLICE_S if threading.current_thread() is threading.main_thread() else math.inf
        while True:
            left_s = end - time.monotonic()
            try:
                self._call("luwu_commit", number, ctypes.byref(result),
                           milliseconds(min(left_s, slice_s)))
                break
            except errors.DeadlineError:
                if end - time.monotonic() <= 0.0:
                    raise
        return CommitResult(_OUTCOMES.get(result.outcome, f"unknown ({result.outcome})"),
                            result.culprit.decode("utf-8", "replace"),
                            _DURABILITIES.get(result.durability, str(result.durability)),
                            result.grad_norm, result.clip_factor, result.loss_scale)

    # ---- fetch ----------------------------------------------------------------------------------

    def fetch(self, layer: int | str, version: int, into: Segments | None = None,
              timeout_s: float = 60.0) -> Any:
        """Copies ``version`` of a layer into ``into`` and returns it.

        ``into``: a buffer for the layer's first elements, or ``Segment``s for any part of it; the
        dtype is converted when it differs from the wire's. ``None`` makes a float32 array of the
        whole layer. Waits until the version exists; never gives another one.
        """
        index = self._layer(layer)
        if into is None:
            into = np.empty(self.job.layers[index].elements, np.float32)
        segments, count, _alive = buffers.c_segments(into, writable=True)
        self._call("luwu_fetch", index, _u64(version, "version"), segments, count,
                   milliseconds(timeout_s))
        return into

    def fetch_async(self, layer: int | str, version: int, into: Segments,
                    timeout_s: float = 60.0, stream: int | None = None) -> Operation:
        """Same, in the background and in call order. The memory is valid once the result is waited
        for; it must not be used before. ``stream``: for buffers in GPU memory, the
        ``cudaStream_t`` that works with them (``torch.cuda.current_stream().cuda_stream``). They
        are overwritten after what is on it now, and what is put onto it once the result has been
        waited for sees the weights; the host does not wait for the copies."""
        if stream is not None:
            segments, count, alive = buffers.c_segments(into, writable=True, gpu=True)
            return self._start("luwu_fetch_device", alive, self._layer(layer),
                               _u64(version, "version"), segments, count, ctypes.c_void_p(stream),
                               milliseconds(timeout_s))
        segments, count, alive = buffers.c_segments(into, writable=True)
        return self._start("luwu_fetch_async", alive, self._layer(layer),
                           _u64(version, "version"), segments, count, milliseconds(timeout_s))

    def fetch_view(self, layer: int | str, version: int, timeout_s: float = 60.0) -> list[Piece]:
        """Read-only arrays over the served bytes, without a copy, in the served dtype (bfloat16 as
        uint16). All daemons must be reached by shm (``UnsupportedError``).

        Valid until this worker closes the layer in the step after ``version``, or until the session
        is closed: touching an array after that is undefined.
        """
        index = self._layer(layer)
        pieces, count = self._pieces("luwu_fetch_view", index, _u64(version, "version"), timeout_s)
        served = self.job.served
        return [Piece(buffers.array_at(piece.data, served, piece.count, False), piece.offset)
                for piece in pieces[:count]]

    # ---- push -----------------------------------------------------------------------------------

    def push(self, layer: int | str, gradient: Segments, close: bool = True,
             timeout_s: float = 60.0) -> None:
        """Gives this worker's gradient of a layer for the open step.

        ``gradient``: a buffer for the layer's first elements, or ``Segment``s; each trainable
        tensor must be covered wholly. ``close=False``: more pushes of this layer follow in this
        step.
        """
        segments, count, _alive = buffers.c_segments(gradient, writable=False)
        self._call("luwu_push", self._layer(layer), segments, count, _flags(close),
                   milliseconds(timeout_s))

    def push_async(self, layer: int | str, gradient: Segments, close: bool = True,
                   timeout_s: float = 60.0, stream: int | None = None) -> Operation:
        """Same, in the background and in call order. The memory must not change until done.
        ``stream``: for buffers in GPU memory, as for ``fetch_async``; what it has written before
        this call is sent."""
        if stream is not None:
            segments, count, alive = buffers.c_segments(gradient, writable=False, gpu=True)
            how = _ffi.CDevicePush(flags=_flags(close), stream=stream)
            return self._start("luwu_push_device", alive, self._layer(layer), segments, count,
                               ctypes.byref(how), milliseconds(timeout_s))
        segments, count, alive = buffers.c_segments(gradient, writable=False)
        return self._start("luwu_push_async", alive, self._layer(layer), segments, count,
                           _flags(close), milliseconds(timeout_s))

    def close_layer(self, layer: int | str, timeout_s: float = 30.0) -> None:
        """Closes a layer without a (further) gradient: "absent" when nothing was pushed."""
        self._call("luwu_close_layer", self._layer(layer), milliseconds(timeout_s))

    def push_in_place(self, layer: int | str, fill: Callable[[np.ndarray, int], None],
                      close: bool = True, timeout_s: float = 60.0) -> None:
        """Pushes a whole layer without a copy: ``fill(array, offset)`` writes the gradient of
        elements ``[offset, offset + array.size)`` straight into the daemons' slots, for each piece
        in turn.

        The arrays have the job's gradient dtype (bfloat16 as uint16) and are valid only during
        ``fill``. When ``fill`` raises, the step cannot be finished: close the session.
        """
        index = self._layer(layer)
        offset, operations = 0, []
        while offset < self.job.layers[index].elements:
            pieces = (_ffi.CPiece * _PIECES)()
            count, handle = c_uint32(_PIECES), c_uint64()
            self._call("luwu_push_inplace_begin", index, _u64(offset, "offset"), pieces,
                       ctypes.byref(count), _flags(close), milliseconds(timeout_s),
                       ctypes.byref(handle))
            for piece in pieces[:count.value]:
                fill(buffers.array_at(piece.data, self.job.gradients, piece.count, True),
                     piece.offset)
                offset = max(offset, piece.offset + piece.count)
            _ffi.call("luwu_push_inplace_end", handle)
            operations.append(self._track(handle.value, None))
        for operation in operations:
            operation.wait(timeout_s)

    # ---- inside ---------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> int:
        if self.closed:
            raise errors.StateError("the session is closed; open a new one")
        return _ffi.call(name, self._handle, *arguments)

    def _start(self, name: str, alive: list[Any], *arguments: Any) -> Operation:
        handle = c_uint64()
        self._call(name, *arguments, ctypes.byref(handle))
        return self._track(handle.value, alive)

    def _track(self, handle: int, alive: Any) -> Operation:
        operation = Operation(handle, alive, self._operations.discard)
        self._operations.add(operation)
        return operation

    def _pieces(self, name: str, index: int, version: c_uint64,
                timeout_s: float) -> tuple[Any, int]:
        capacity = _PIECES
        while True:
            pieces, count = (_ffi.CPiece * capacity)(), c_uint32(capacity)
            try:
                self._call(name, index, version, pieces, ctypes.byref(count),
                           milliseconds(timeout_s))
                return pieces, count.value
            except errors.ArgumentError:
                if count.value <= capacity:
                    raise
                capacity = count.value

    def _layer(self, layer: int | str) -> int:
        try:
            index = self.job.layer_index(layer)
        except KeyError as error:
            raise errors.NotFoundError(str(error.args[0])) from None
        if not 0 <= index < len(self.job.layers):
            raise errors.NotFoundError(
                f"layer {index} does not exist; job {self.job.name!r} has {len(self.job.layers)}")
        return index


def _close(handle: int, operations: set[Operation], pid: int) -> None:
    if os.getpid() != pid:  # a forked child must not end its parent's session
        return
    _ffi.library().luwu_session_close(handle)
    for operation in list(operations):  # until the library has let go of their memory
        try:
            operation.wait(5.0)
        except errors.LuwuError:
            pass


def _u64(value: int, what: str) -> c_uint64:
    return c_uint64(fits(value, 64, what))


def _flags(close: bool) -> int:
    return _ffi.PUSH_CLOSE if close else 0


def _float_pointer(values: np.ndarray) -> tuple[Any, int]:
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise errors.ArgumentError("masters are float32: pass a numpy array of that dtype")
    if not values.flags.c_contiguous:
        raise errors.ArgumentError("the array is not C-contiguous; use numpy.ascontiguousarray")
    return values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), values.size
