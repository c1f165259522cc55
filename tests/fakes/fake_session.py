"""A LuWu job inside the test's own process, with the interface of ``luwu.Session``.

Keeps the rules that the torch adapter depends on (versions, closing, begin before push) and raises
when they are broken; updates with torch's own optimizers, so it is an oracle for the adapter but
not for the daemon. One worker. Fetches write at ``wait``, when the real one may be writing at any
time: memory that is given back too early shows as wrong weights or a crash.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

import luwu
from luwu.buffers import Memory, Segment, memory_of


def _array(memory: Memory) -> np.ndarray:
    raw = (ctypes.c_uint8 * (memory.count * memory.dtype.itemsize)).from_address(memory.address)
    dtype = {1: np.float32, 2: np.uint16, 3: np.float16}[int(memory.dtype)]
    return np.frombuffer(raw, dtype=dtype)


class FakeOperation:
    def __init__(self, work: Any) -> None:
        self._work = work
        self.done = False

    def wait(self, timeout_s: float = 60.0) -> None:
        if not self.done:
            self._work()
            self.done = True


class FakeSession:
    """See the module text. ``log`` records (verb, layer, detail) in call order."""

    def __init__(self, job: luwu.JobSpec) -> None:
        self.job = job
        self.step = 0
        self.loaded = False
        self.loss_scale = job.loss_scaling.init_scale if job.loss_scaling is not None else 1.0
        self.max_norm: list[float] = []
        self.begun: list[Any] | None = None
        self.masters = [np.zeros(layer.elements, np.float32) for layer in job.layers]
        self.parameters: list[list[torch.nn.Parameter]] = []
        self.sums: dict[int, np.ndarray] = {}
        self.closed: set[int] = set()
        self.log: list[tuple[str, int, Any]] = []
        self.fail_next: dict[str, list[Exception]] = {}

    def close(self) -> None:
        pass

    def info(self) -> luwu.SessionInfo:
        return luwu.SessionInfo(
            1, self.step, 0, 0, 0, True, self.loaded, 1, 0, self.loss_scale)

    @property
    def current_step(self) -> int:
        return self.step

    def load(self, layer: int, values: np.ndarray, offset: int = 0, timeout_s: float = 0) -> None:
        self.masters[layer][offset:offset + values.size] = values.reshape(-1)

    def finish_load(self, allow_missing: bool = False, timeout_s: float = 0) -> None:
        self.loaded = True
        groups: list[dict[str, Any]] = [{"params": []} for _ in range(self.job.groups)]
        for master, layer in zip(self.masters, self.job.layers):
            row = []
            for t in layer.tensors:
                view = torch.from_numpy(master)[t.offset:t.offset + t.elements]
                parameter = torch.nn.Parameter(view, requires_grad=t.trainable)
                row.append(parameter)
                groups[t.group]["params"].append(parameter)
            self.parameters.append(row)
        kind = getattr(torch.optim, type(self.job.optimizer).__name__)
        fixed = {name: vars(self.job.optimizer)[name] for name in (
            "amsgrad", "initial_accumulator_value") if name in vars(self.job.optimizer)}
        self.optimizer = kind(groups, lr=1.0, **fixed)

    def wait_loaded(self, timeout_s: float = 0) -> None:
        assert self.loaded

    def read(self, layer: int, quantity: str = "master", offset: int = 0,
             count: int | None = None, timeout_s: float = 0) -> np.ndarray:
        assert quantity == "master"
        return self.masters[layer][offset:][:count].copy()

    def begin_step(self, step: int, groups: Any, timeout_s: float = 0,
                   max_norm: Any = 0.0) -> None:
        assert step == self.step and self.begun is None, (step, self.step)
        assert len(groups) == len(max_norm) == self.job.groups
        self.begun, self.max_norm = list(groups), list(max_norm)

    def _fail(self, verb: str) -> None:
        if self.fail_next.get(verb):
            raise self.fail_next[verb].pop(0)

    def fetch_async(self, layer: int, version: int, into: list[Segment],
                    timeout_s: float = 0) -> FakeOperation:
        assert version == self.step, f"fetch of version {version} in step {self.step}"
        self.log.append(("fetch", layer, version))

        def work() -> None:
            self._fail("fetch")
            for segment in into:
                memory = memory_of(segment.data, writable=True)
                values = self.masters[layer][segment.offset:segment.offset + memory.count]
                target = _array(memory)
                if memory.dtype is luwu.DType.BFLOAT16:
                    values = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
                    target = target.view(np.int16)
                target[:] = values

        return FakeOperation(work)

    def push_async(self, layer: int, gradient: list[Segment], close: bool = True,
                   timeout_s: float = 0) -> FakeOperation:
        assert self.begun is not None, "push before begin_step"
        assert layer not in self.closed, f"layer {layer} is closed"
        covered = {segment.offset for segment in gradient}
        for tensor in self.job.layers[layer].tensors:
            assert (tensor.offset in covered) == tensor.trainable, tensor.name
        self.log.append(("push", layer, close))
        if close:
            self.closed.add(layer)

        def work() -> None:
            self._fail("push")
            elements = self.job.layers[layer].elements
            total = self.sums.setdefault(layer, np.zeros(elements, np.float32))
            for segment in gradient:
                memory = memory_of(segment.data, writable=False)
                values = _array(memory)
                if memory.dtype is luwu.DType.BFLOAT16:
                    values = torch.from_numpy(
                        values.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
                total[segment.offset:segment.offset + memory.count] += values

        return FakeOperation(work)

    def close_layer(self, layer: int, timeout_s: float = 0) -> None:
        assert self.begun is not None and layer not in self.closed
        self.log.append(("close", layer, None))
        self.closed.add(layer)

    def commit(self, step: int, timeout_s: float = 0) -> luwu.CommitResult:
        self._fail("commit")
        assert step == self.step and self.begun is not None
        for index, layer in enumerate(self.job.layers):
            assert (index in self.closed) == layer.trainable, f"layer {layer.name} left open"
        for values, group in zip(self.begun, self.optimizer.param_groups):
            group.update(values.step_values())
        for index, layer in enumerate(self.job.layers):
            for parameter, tensor in zip(self.parameters[index], layer.tensors):
                total = self.sums.get(index)
                parameter.grad = None
                if total is not None and tensor.trainable:
                    part = total[tensor.offset:tensor.offset + tensor.elements]
                    parameter.grad = torch.from_numpy(part) / self.loss_scale
        result = self._decide()
        self.sums, self.closed, self.begun = {}, set(), None
        self.step += 1
        return result

    def _decide(self) -> luwu.CommitResult:
        """Clips (scope "global"), updates or skips, and moves the loss scale."""
        everything = [p for row in self.parameters for p in row if p.grad is not None]
        limit = self.max_norm[0] or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(everything, limit)) if everything else 0.0
        applied = bool(np.isfinite(norm))
        if applied:
            self.optimizer.step()
        elif self.job.loss_scaling is not None:
            self.loss_scale *= self.job.loss_scaling.backoff_factor
        return luwu.CommitResult(
            "applied" if applied else "skipped", "" if applied else "a gradient", "memory", norm,
            min(1.0, limit / (norm + 1e-6)), self.loss_scale)
