"""The optimizer engine as numpy sees it, by way of ``engine_shim.cc``: one shard, one segment."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

import numpy as np

KINDS = {"adamw": 1, "sgd": 2, "adam": 3, "lion": 4, "adagrad": 5}
PRECISIONS = {"float32": 1, "bfloat16": 2, "blockwise8": 3}
MASTERS = {"float32": 1, "split": 2}
DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
_ARRAYS = 4
_SOURCE = Path(__file__).resolve().parents[3]


class _Optimizer(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("sgd_momentum", ctypes.c_int32),
                ("amsgrad", ctypes.c_int32), ("state_precision", ctypes.c_int32),
                ("master_format", ctypes.c_int32), ("reserved", ctypes.c_int32),
                ("rounding_seed", ctypes.c_uint64), ("initial_accumulator", ctypes.c_double)]


class _Hyper(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in
                ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening",
                 "lr_decay")] + [("nesterov", ctypes.c_int64)]


class _Shard(ctypes.Structure):
    _fields_ = [("elements", ctypes.c_uint64), ("arrays_in", ctypes.c_void_p * _ARRAYS),
                ("arrays_out", ctypes.c_void_p * _ARRAYS), ("served_in", ctypes.c_void_p),
                ("served", ctypes.c_void_p), ("served_dtype", ctypes.c_int32),
                ("gradient_dtype", ctypes.c_int32),
                ("gradients", ctypes.POINTER(ctypes.c_void_p)),
                ("gradient_count", ctypes.c_uint64), ("job_element", ctypes.c_uint64)]


def _load() -> ctypes.CDLL:
    default = _SOURCE / "build" / "release" / "tests" / "libluwu_engine_shim.so"
    library = ctypes.CDLL(os.environ.get("LUWU_ENGINE_SHIM", str(default)))
    library.engine_array_bytes.restype = ctypes.c_uint64
    library.engine_array_bytes.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64]
    library.engine_update.restype = ctypes.c_double
    library.engine_update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64,
                                      ctypes.c_void_p, ctypes.c_float]
    library.engine_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
                                    ctypes.c_void_p]
    return library


_engine = _load()


def choose_portable(portable: bool) -> None:
    """Forces the portable kernels, or the best again. No other thread may be in the engine."""
    _engine.engine_choose_kernels(int(portable))


@dataclass(frozen=True)
class Optimizer:
    """One choice of optimizer and formats; names as in ``KINDS``, ``PRECISIONS``, ``MASTERS``."""
    kind: str
    momentum: bool = False
    amsgrad: bool = False
    precision: str = "float32"
    master: str = "float32"
    seed: int = 0
    initial_accumulator: float = 0.0

    def struct(self) -> _Optimizer:
        return _Optimizer(KINDS[self.kind], self.momentum, self.amsgrad,
                          PRECISIONS[self.precision], MASTERS[self.master], 0, self.seed,
                          self.initial_accumulator)

    def is_valid(self) -> bool:
        return bool(_engine.engine_is_valid(ctypes.byref(self.struct())))


def _aligned(nbytes: int) -> np.ndarray:
    """Zeroed bytes that begin on a cache line."""
    block = np.zeros(nbytes + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start:start + nbytes]


@dataclass
class Shard:
    """The state of ``masters.size`` elements, in place."""
    optimizer: Optimizer
    masters: np.ndarray
    served_dtype: str = "float32"
    job_element: int = 0
    applied: int = 0
    arrays: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._spec = self.optimizer.struct()
        elements = self.masters.size
        for index in range(_ARRAYS):
            nbytes = _engine.engine_array_bytes(ctypes.byref(self._spec), index, elements)
            if nbytes:
                self.arrays.append(_aligned(nbytes))
        self.served = _aligned(elements * (4 if self.served_dtype == "float32" else 2))
        self._shard = _Shard(elements=elements, served_in=self.served.ctypes.data,
                             served=self.served.ctypes.data,
                             served_dtype=DTYPES[self.served_dtype], job_element=self.job_element)
        for index, array in enumerate(self.arrays):
            self._shard.arrays_in[index] = self._shard.arrays_out[index] = array.ctypes.data
        values = np.ascontiguousarray(self.masters, np.float32)
        _engine.engine_initialise(ctypes.byref(self._spec), ctypes.byref(self._shard),
                                  ctypes.c_void_p(values.ctypes.data))

    def update(self, gradients: Sequence[np.ndarray], dtype: str, scale: float = 1.0,
               **hyper: float) -> float:
        """One update with the sum of ``gradients`` (bfloat16 as uint16) times ``scale``. Returns
        the squared norm, NaN when the sum is not finite."""
        pointers = (ctypes.c_void_p * len(gradients))(*(g.ctypes.data for g in gradients))
        self._shard.gradients = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
        self._shard.gradient_count = len(gradients)
        self._shard.gradient_dtype = DTYPES[dtype]
        norm = _engine.engine_update(ctypes.byref(self._spec), ctypes.byref(_Hyper(**hyper)),
                                     self.applied, ctypes.byref(self._shard), scale)
        self.applied += 1
        return norm

    def read(self, array: int = 0) -> np.ndarray:
        """fp32 values of an array: 0 master, then moments."""
        values = np.empty(self.masters.size, np.float32)
        _engine.engine_read(ctypes.byref(self._spec), ctypes.byref(self._shard), array,
                            values.ctypes.data)
        return values
