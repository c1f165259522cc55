"""torch.optim (for Lion: ``lion.py``) on the same weights and gradients, and the comparison."""

from __future__ import annotations

import os
from typing import Callable, Mapping, Sequence

import numpy as np
import torch

from lion import Lion
from luwu import HyperParameters, JobSpec

# torch's plain kernels round every operation once. Its AVX2 and AVX-512 kernels fuse multiplication
# and addition in add(alpha=) and addcmul, so the last bits of moments and (SGD) weights differ
# from any arithmetic that does not.
# torch 2 also computes exp_avg in another order (lerp).
PLAIN_KERNELS = (os.environ.get("ATEN_CPU_CAPABILITY") == "default"
                 and torch.__version__.startswith("1."))
LIMIT = 1e-6

torch.set_num_threads(1)


class Oracle:
    """The trainable tensors of a job as torch parameters under the job's optimizer."""

    def __init__(self, job: JobSpec, weights: Mapping[str, np.ndarray]) -> None:
        self.parameters: dict[str, torch.nn.Parameter] = {}
        groups: list[list[torch.nn.Parameter]] = [[] for _ in range(job.groups)]
        for layer in job.layers:
            for tensor in layer.tensors:
                if tensor.trainable:
                    value = torch.from_numpy(weights[tensor.name].copy())
                    parameter = torch.nn.Parameter(value)
                    self.parameters[tensor.name] = parameter
                    groups[tensor.group].append(parameter)
        name = type(job.optimizer).__name__
        kind = Lion if name == "Lion" else getattr(torch.optim, name)
        fixed = {key: value for key, value in vars(job.optimizer).items()
                 if key in ("amsgrad", "initial_accumulator_value")}
        self.optimizer = kind(
            [{"params": group, **job.optimizer.step_values()} for group in groups],
            lr=job.optimizer.lr, **fixed)

    def step(self, groups: Sequence[HyperParameters], gradients: Mapping[str, np.ndarray],
             before_update: Callable[[], None] | None = None) -> None:
        """One step; a parameter without an entry has ``grad`` None. ``before_update`` may change
        gradients, as clipping does."""
        for name, parameter in self.parameters.items():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else torch.from_numpy(gradient.copy())
        for group, values in zip(self.optimizer.param_groups, groups):
            group.update(values.step_values())
        if before_update is not None:
            before_update()
        self.optimizer.step()

    def masters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in self.parameters.items()}

    def state(self, key: str) -> dict[str, np.ndarray]:
        """A state tensor ("exp_avg", "momentum_buffer") of the parameters that have one."""
        return {name: self.optimizer.state[value][key].numpy()
                for name, value in self.parameters.items() if key in self.optimizer.state[value]}


def worst_difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Largest |ours - theirs| of any element that torch has, over its magnitude or, for smaller
    ones, the typical magnitude of the model. (A weight passing through zero carries the rounding
    errors of its larger past: a quotient by its momentary value has no bound for any two ways of
    rounding.)"""
    assert theirs and theirs.keys() <= ours.keys()
    a, b = (np.concatenate([values[name].astype(np.float64).reshape(-1) for name in theirs])
            for values in (ours, theirs))
    typical = np.sqrt(np.mean(np.square(b)))
    assert typical > 0
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(b), typical)))


def assert_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray],
                 bits: bool = True) -> float:
    """Asserts equality: bit for bit when torch's plain kernels run and ``bits`` says that the
    inputs were equal to the last bit; within ``LIMIT`` otherwise. Returns the worst difference."""
    worst = worst_difference(ours, theirs)
    assert worst <= LIMIT
    if bits and PLAIN_KERNELS:
        for name, value in theirs.items():
            unequal = np.flatnonzero(ours[name].view(np.uint32) != value.view(np.uint32))
            assert unequal.size == 0, f"{name}: {unequal.size} elements, first {unequal[0]}"
    return worst
