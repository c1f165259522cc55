"""``luwu.Session`` with GPU memory, through the driver that libcuda.so.1 is: the fake one of
tests/fakes, first on LD_LIBRARY_PATH, or NVIDIA's. The copies themselves are tested in tests/gpu.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import pytest
from cluster import Cluster

import luwu

_NOT_READY = 600


class Gpu:
    """Just enough of the driver."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            pytest.skip(f"no GPU: {error}")
        context, self.stream, self._event = c_void_p(), c_void_p(), c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuStreamCreate", byref(self.stream), 1)
        self._call("cuEventCreate", byref(self._event), 2)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        assert status == 0, f"{name}: CUDA error {status}"

    def allocate(self, count: int) -> int:
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(4 * count))
        return address.value

    def pinned(self, count: int) -> np.ndarray:
        memory = c_void_p()
        self._call("cuMemHostAlloc", byref(memory), c_size_t(4 * count), 1)
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(memory.value or 0))

    def write(self, address: int, values: np.ndarray) -> None:
        self._call("cuMemcpyHtoDAsync_v2", c_uint64(address), c_void_p(values.ctypes.data),
                   c_size_t(values.nbytes), self.stream)

    def read(self, address: int, values: np.ndarray) -> None:
        self._call("cuMemcpyDtoHAsync_v2", c_void_p(values.ctypes.data), c_uint64(address),
                   c_size_t(values.nbytes), self.stream)
        self._call("cuEventRecord", self._event, self.stream)
        end = time.monotonic() + 60
        while self._driver.cuEventQuery(self._event) == _NOT_READY:
            assert time.monotonic() < end
            time.sleep(0.001)


def test_a_step_through_gpu_memory(cluster: Cluster, job_name: str) -> None:
    gpu, count = Gpu(), 1000
    job = luwu.JobSpec(
        job_name, 1, (luwu.layer_of("layer", [("w", (count,))]),), optimizer=luwu.SGD(lr=0.5),
        served=luwu.DType.FLOAT32, gradients=luwu.DType.FLOAT32, shard_elements=128)
    masters = np.linspace(-1, 1, count, dtype=np.float32)
    gradient, seen = gpu.pinned(count), gpu.pinned(count)
    gradient[:] = np.arange(count, dtype=np.float32) % 7
    memory = luwu.Memory(gpu.allocate(count), luwu.DType.FLOAT32, count, gpu)
    stream = gpu.stream.value or 0
    with luwu.Session(cluster.endpoints, job, rank=0) as session:
        assert session.device_info() is None
        session.load("layer", masters)
        session.finish_load()
        session.begin_step(0)
        session.fetch_async("layer", 0, memory, stream=stream).wait()
        gpu.read(memory.address, seen)
        np.testing.assert_array_equal(seen, masters)
        gpu.write(memory.address, gradient)
        session.push_async("layer", memory, stream=stream).wait()
        assert session.commit(0).applied
        session.fetch_async("layer", 1, memory, stream=stream).wait()
        gpu.read(memory.address, seen)
        np.testing.assert_array_equal(seen, masters - np.float32(0.5) * gradient)
        info = session.device_info()
        assert info is not None and info.ordinal == 0 and info.name
        assert info.fetched_bytes == 8 * count and info.pushed_bytes == 4 * count
        assert info.kernels == (info.no_kernels == "")


def test_host_memory_with_a_stream_is_refused(cluster: Cluster, job_name: str) -> None:
    gpu = Gpu()
    job = luwu.JobSpec(job_name, 1, (luwu.layer_of("layer", [("w", (8,))]),))
    values = np.zeros(8, np.float32)
    memory = luwu.Memory(values.ctypes.data, luwu.DType.FLOAT32, 8, values)
    with luwu.Session(cluster.endpoints, job, rank=0) as session:
        with pytest.raises(luwu.ArgumentError, match="not in GPU memory"):
            session.fetch_async("layer", 0, memory, stream=gpu.stream.value or 0)
