"""ctypes bindings of ``luwu/luwu.h``: structs, the function table, and finding the library.

Private: everything else in the package goes through :func:`call`. ctypes releases the GIL during a
call, so a waiting fetch or commit never stops other Python threads.

The library is looked for in this order: ``$LUWU_LIBRARY``; beside the package;
``build/release/lib`` of the source checkout that holds the package; the loader's path.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_uint32, c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from luwu import errors

ABI_VERSION = 1
SONAME = "libluwu.so.1"

OK = 0
IN_PROGRESS = 1
PUSH_CLOSE = 1
DEFAULT_OVERFLOW = 2**64 - 1
NEVER_GROWS = 2**32 - 1


class Sized(Structure):
    """A struct that begins with its size, which is set here."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **values)


class CTensorSpec(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("group", c_uint32), ("name", c_char_p),
        ("shape", POINTER(c_uint64)), ("dims", c_uint32), ("trainable", c_uint32),
        ("offset", c_uint64),
    ]


class CLayerSpec(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("tensor_count", c_uint32), ("name", c_char_p),
        ("tensors", POINTER(CTensorSpec)), ("elements", c_uint64),
    ]


class CJobSpec(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("world_size", c_uint32), ("name", c_char_p),
        ("layers", POINTER(CLayerSpec)), ("layer_count", c_uint32), ("groups", c_uint32),
        ("optimizer", c_int32), ("sgd_momentum", c_uint32), ("served_dtype", c_int32),
        ("gradient_dtype", c_int32), ("reduction", c_int32), ("on_non_finite", c_int32),
        ("keep_undo_state", c_uint32), ("slots_per_worker", c_uint32),
        ("shard_elements", c_uint64), ("overflow_bytes", c_uint64),
        ("update_mode", c_int32), ("held_dtype", c_int32), ("clip_scope", c_int32),
        ("state_precision", c_int32), ("master_format", c_int32), ("amsgrad", c_uint32),
        ("rounding_seed", c_uint64), ("initial_accumulator", c_double),
        ("loss_scale_initial", c_double), ("loss_scale_growth_factor", c_double),
        ("loss_scale_backoff_factor", c_double), ("loss_scale_growth_interval", c_uint32),
        ("accumulates", c_uint32), ("durable_every", c_uint32), ("durability", c_int32),
        ("memory_bytes", c_uint64),
    ]


class CHyper(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("nesterov", c_uint32), ("lr", c_double),
        ("weight_decay", c_double), ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
        ("momentum", c_double), ("dampening", c_double), ("lr_decay", c_double),
        ("max_norm", c_double),
    ]


class COpenOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("rank", c_uint32), ("endpoints", c_char_p),
        ("job", POINTER(CJobSpec)), ("restart_count", c_uint64), ("transport", c_int32),
        ("tcp_connections", c_uint32), ("verify_served_crc", c_uint32), ("timeout_ms", c_uint32),
        ("fault_plan", c_char_p), ("node_timeout_ms", c_uint32), ("must_train", c_uint32),
        ("rdma", c_char_p), ("tls_ca", c_char_p), ("tls_certificate", c_char_p),
        ("tls_key", c_char_p),
    ]


class CSessionInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("nodes", c_uint32), ("current_step", c_uint64),
        ("fetched_bytes", c_uint64), ("pushed_bytes", c_uint64), ("retries", c_uint64),
        ("created", c_uint32), ("loaded", c_uint32), ("shm_nodes", c_uint32),
        ("operations", c_uint32), ("loss_scale", c_double), ("rolled_back_step_plus_1", c_uint64),
    ]


class CCommitResult(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("outcome", c_int32), ("durability", c_int32),
        ("reserved", c_uint32), ("culprit", c_char * 512), ("grad_norm", c_double),
        ("clip_factor", c_double), ("loss_scale", c_double),
    ]


class CSegment(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("dtype", c_int32), ("data", c_void_p), ("offset", c_uint64),
        ("count", c_uint64),
    ]


class CGradientCheck(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("reserved", c_uint32), ("non_finite", c_uint64),
        ("square_sum", c_double),
    ]


class CDevicePush(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("flags", c_uint32), ("stream", c_void_p), ("scale", c_double),
        ("check", POINTER(CGradientCheck)),
    ]


class CDeviceInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32), ("used", c_uint32), ("ordinal", c_int32), ("kernels", c_uint32),
        ("pinned_bytes", c_uint64), ("fetched_bytes", c_uint64), ("pushed_bytes", c_uint64),
        ("name", c_char * 128), ("no_kernels", c_char * 256),
    ]


class CPiece(Structure):
    """``luwu_view_piece`` and ``luwu_slot_piece``: the library fills them in."""

    _fields_ = [("data", c_void_p), ("offset", c_uint64), ("count", c_uint64)]


LogSink = CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

_Session = c_uint64
_Op = c_uint64
_FUNCTIONS: dict[str, list[Any]] = {
    "luwu_init": [c_uint32],
    "luwu_set_log_sink": [LogSink, c_void_p, c_int32],
    "luwu_session_open": [POINTER(COpenOptions), POINTER(_Session)],
    "luwu_session_close": [_Session],
    "luwu_session_get_info": [_Session, POINTER(CSessionInfo)],
    "luwu_job_delete": [c_char_p, c_char_p, c_uint32, c_uint32],
    "luwu_load": [_Session, c_uint32, c_uint64, POINTER(c_float), c_uint64, c_uint32],
    "luwu_finish_load": [_Session, c_uint32, c_uint32],
    "luwu_wait_loaded": [_Session, c_uint32],
    "luwu_read": [_Session, c_uint32, c_int32, c_uint64, POINTER(c_float), c_uint64, c_uint32],
    "luwu_begin_step": [_Session, c_uint64, POINTER(CHyper), c_uint32, c_uint32],
    "luwu_commit": [_Session, c_uint64, POINTER(CCommitResult), c_uint32],
    "luwu_fetch": [_Session, c_uint32, c_uint64, POINTER(CSegment), c_uint32, c_uint32],
    "luwu_fetch_async": [_Session, c_uint32, c_uint64, POINTER(CSegment), c_uint32, c_uint32,
                         POINTER(_Op)],
    "luwu_fetch_view": [_Session, c_uint32, c_uint64, POINTER(CPiece), POINTER(c_uint32), c_uint32],
    "luwu_push": [_Session, c_uint32, POINTER(CSegment), c_uint32, c_uint32, c_uint32],
    "luwu_push_async": [_Session, c_uint32, POINTER(CSegment), c_uint32, c_uint32, c_uint32,
                        POINTER(_Op)],
    "luwu_close_layer": [_Session, c_uint32, c_uint32],
    "luwu_push_inplace_begin": [_Session, c_uint32, c_uint64, POINTER(CPiece), POINTER(c_uint32),
                                c_uint32, c_uint32, POINTER(_Op)],
    "luwu_push_inplace_end": [_Op],
    "luwu_fetch_device": [_Session, c_uint32, c_uint64, POINTER(CSegment), c_uint32, c_void_p,
                          c_uint32, POINTER(_Op)],
    "luwu_push_device": [_Session, c_uint32, POINTER(CSegment), c_uint32, POINTER(CDevicePush),
                         c_uint32, POINTER(_Op)],
    "luwu_session_get_device_info": [_Session, POINTER(CDeviceInfo)],
    "luwu_wait": [_Op, c_uint32],
    "luwu_test": [_Op],
    "luwu_status_json": [_Session, c_char_p, c_uint64, c_uint32],
}
_TEXT_FUNCTIONS: dict[str, list[Any]] = {
    "luwu_version": [], "luwu_strerror": [c_int32], "luwu_last_error": [],
}

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def candidates() -> list[str]:
    """Where the library may be, best first."""
    chosen = os.environ.get("LUWU_LIBRARY")
    if chosen:
        return [chosen]
    package = Path(__file__).resolve().parent
    found = [package / SONAME, package.parents[2] / "build" / "release" / "lib" / SONAME]
    return [str(path) for path in found if path.exists()] + [SONAME]


def _load() -> ctypes.CDLL:
    tried = []
    for path in candidates():
        try:
            loaded = ctypes.CDLL(path)
            break
        except OSError as error:
            tried.append(f"{path}: {error}")
    else:
        raise errors.LibraryError(
            f"{SONAME} was not found ({'; '.join(tried)}). Build it, or set LUWU_LIBRARY to its "
            "path")
    try:
        for name, arguments in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, c_int32
        for name, arguments in _TEXT_FUNCTIONS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, c_char_p
    except AttributeError as error:
        raise errors.LibraryError(
            f"{path} is not a LuWu library of this version: {error}") from None
    if loaded.luwu_init(ABI_VERSION) != OK:
        text = loaded.luwu_last_error().decode(errors="replace")
        raise errors.LibraryError(f"{path} does not speak ABI level {ABI_VERSION}: {text}")
    return loaded


def library() -> ctypes.CDLL:
    """The loaded library; loads and checks it at the first call. ``LibraryError`` if it cannot."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def last_error() -> str:
    """Text of the calling thread's last failed call."""
    return str(library().luwu_last_error().decode("utf-8", "replace"))


def call(name: str, *arguments: Any) -> int:
    """Calls a library function; a negative status becomes an exception of ``luwu.errors``."""
    status = getattr(library(), name)(*arguments)
    if status < 0:
        text = last_error() or library().luwu_strerror(status).decode()
        raise errors.make_error(status, text)
    return int(status)
