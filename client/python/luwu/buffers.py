"""Caller memory as the library sees it: address, dtype and element count.

Accepted are numpy arrays (float32, float16, and uint16 standing for bfloat16), and any object with
``__dlpack__`` (torch tensors, jax arrays) of float32, float16 or bfloat16, on the CPU or, where a
stream is passed, on a GPU. Memory must be C-contiguous; nothing is ever copied behind the caller's
back.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Iterable, Sequence, Union

import numpy as np

from luwu import _ffi
from luwu.errors import ArgumentError, UnsupportedError
from luwu.specs import DType

_NUMPY_DTYPES = {
    "float32": DType.FLOAT32, "float16": DType.FLOAT16, "uint16": DType.BFLOAT16,
    "bfloat16": DType.BFLOAT16,
}
NUMPY_OF: dict[DType, np.dtype[Any]] = {
    DType.FLOAT32: np.dtype(np.float32), DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(np.uint16),
}
# (DLDataTypeCode, bits): kDLFloat = 2, kDLBfloat = 4
_DLPACK_DTYPES = {(2, 32): DType.FLOAT32, (2, 16): DType.FLOAT16, (4, 16): DType.BFLOAT16}
_DLPACK_CPU = 1
_DLPACK_CUDA = 2
_DLPACK_NO_SYNCHRONISATION = -1  # the library waits for the stream itself


@dataclass(frozen=True)
class Memory:
    """``count`` elements of ``dtype`` at ``address``; ``owner`` keeps them alive."""

    address: int
    dtype: DType
    count: int
    owner: Any


@dataclass(frozen=True)
class Segment:
    """Memory for elements ``[offset, offset + size)`` of a layer. ``data``: see the module text."""

    data: Any
    offset: int = 0


Segments = Union[Any, Segment, Sequence[Segment]]


class _DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _of_numpy(array: np.ndarray, writable: bool) -> Memory:
    dtype = _NUMPY_DTYPES.get(array.dtype.name)
    if dtype is None:
        raise UnsupportedError(
            f"a numpy array of {array.dtype.name} cannot be used; use float32, float16, or uint16 "
            "holding bfloat16 bits", code=-104)
    if not array.flags.c_contiguous:
        raise ArgumentError("the array is not C-contiguous; pass numpy.ascontiguousarray(array)")
    if writable and not array.flags.writeable:
        raise ArgumentError("the array is read-only and cannot be a fetch destination")
    return Memory(array.ctypes.data, dtype, array.size, array)


def _is_contiguous(tensor: _DlTensor) -> bool:
    if not tensor.strides:
        return True
    expected = 1
    for axis in reversed(range(tensor.ndim)):
        if tensor.shape[axis] != 1 and tensor.strides[axis] != expected:
            return False
        expected *= tensor.shape[axis]
    return True


def _of_dlpack(data: Any, gpu: bool) -> Memory:
    capsule = data.__dlpack__(stream=_DLPACK_NO_SYNCHRONISATION) if gpu else data.__dlpack__()
    # DLManagedTensor begins with the DLTensor. The capsule is not consumed: as long as it lives,
    # so does the memory, and its own destructor gives it back.
    tensor = _DlTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type != (_DLPACK_CUDA if gpu else _DLPACK_CPU):
        raise UnsupportedError(
            "the buffer is not in host memory; pass the stream of its GPU to fetch_async() or "
            "push_async(), or copy it to the CPU first")
    dtype = _DLPACK_DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise UnsupportedError(
            f"DLPack type (code {tensor.code}, {tensor.bits} bits) cannot be used; use float32, "
            "float16 or bfloat16")
    if not _is_contiguous(tensor):
        raise ArgumentError("the buffer is not C-contiguous; make it contiguous first")
    count = 1
    for axis in range(tensor.ndim):
        count *= tensor.shape[axis]
    return Memory((tensor.data or 0) + tensor.byte_offset, dtype, count, (capsule, data))


def _on_gpu(data: Any) -> bool:
    if int(data.__dlpack_device__()[0]) == _DLPACK_CUDA:
        return True
    raise UnsupportedError("the buffer is not in GPU memory; a stream is for buffers that are")


def memory_of(data: Any, writable: bool, gpu: bool = False) -> Memory:
    """Describes a buffer in host or GPU memory. ``ArgumentError`` or ``UnsupportedError`` say what
    is wrong with it."""
    if isinstance(data, Memory):
        return data
    if isinstance(data, np.ndarray) and not gpu:
        return _of_numpy(data, writable)
    if hasattr(data, "__dlpack__"):
        return _of_dlpack(data, gpu and _on_gpu(data))
    raise ArgumentError(
        f"{type(data).__name__} is not a buffer; pass a numpy array or an object with __dlpack__")


def c_segments(segments: Segments, writable: bool,
               gpu: bool = False) -> tuple[Any, int, list[Any]]:
    """A C array of segments, its length, and what must stay alive while the library uses it."""
    items: Iterable[Any] = segments if isinstance(segments, (list, tuple)) else (segments,)
    described = []
    for item in items:
        segment = item if isinstance(item, Segment) else Segment(item)
        described.append((memory_of(segment.data, writable, gpu), segment.offset))
    array = (_ffi.CSegment * len(described))()
    for entry, (memory, offset) in zip(array, described):
        entry.struct_size = ctypes.sizeof(_ffi.CSegment)
        entry.dtype, entry.data = int(memory.dtype), memory.address
        entry.offset, entry.count = offset, memory.count
    return array, len(described), [array] + [memory.owner for memory, _ in described]


def array_at(address: int, dtype: DType, count: int, writable: bool) -> np.ndarray:
    """A numpy array over library memory, without a copy; the caller knows how long it lives."""
    raw = memoryview((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address))
    array: np.ndarray = np.frombuffer(raw, dtype=NUMPY_OF[dtype])
    array.flags.writeable = writable
    return array
