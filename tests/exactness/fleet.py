"""The workers of a job, driven with explicit gradients over the numpy session API.

Gradients are given, not computed, so that the daemons' arithmetic is all that can differ from
torch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Mapping, Sequence

import numpy as np

import luwu
from luwu import HyperParameters, JobSpec, LayerSpec, Segment, Session, TensorSpec

Values = Mapping[str, np.ndarray]  # by tensor name
# What one worker pushes in a step: for each micro-batch its gradients by tensor name. A tensor that
# is missing in a micro-batch belongs to a layer that is not pushed in it.
MicroBatches = Sequence[Values]


def layer(name: str, *tensors: tuple, align: int = 64) -> LayerSpec:
    """A layer of tensors ``(name, shape[, group[, trainable]])``, named "layer.tensor"."""
    specs, offset = [], 0
    for tensor_name, shape, *rest in tensors:
        group, trainable = (rest + [0, True][len(rest):])[:2]
        spec = TensorSpec(f"{name}.{tensor_name}", shape, offset, group, trainable)
        specs.append(spec)
        offset += -(-spec.elements // align) * align
    return LayerSpec(name, offset, tuple(specs))


class Fleet:
    """All workers of a job, each in a thread of its own during a step. A context manager."""

    def __init__(self, endpoints: str, job: JobSpec, weights: Values) -> None:
        self.job = job
        self._threads = ThreadPoolExecutor(job.world_size)
        self.sessions: list[Session] = []
        self._max_norm: float | Sequence[float] = 0.0
        try:
            for rank in range(job.world_size):
                self.sessions.append(Session(endpoints, job, rank))
            for index, spec in enumerate(job.layers):
                for tensor in spec.tensors:
                    self.sessions[0].load(index, weights[tensor.name].reshape(-1), tensor.offset)
            self.sessions[0].finish_load()
            for session in self.sessions[1:]:
                session.wait_loaded()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self._threads.shutdown()

    def step(self, step: int, groups: Sequence[HyperParameters],
             gradients: Sequence[MicroBatches], outcome: str = "applied",
             max_norm: float | Sequence[float] = 0.0) -> luwu.CommitResult:
        """One step of all workers at once; ``gradients[rank]``. It must end as ``outcome``, in the
        same words for all of them."""
        self._max_norm = max_norm
        results = list(self._threads.map(
            lambda rank: self._worker_step(rank, step, groups, gradients[rank]),
            range(self.job.world_size)))
        assert [result.outcome for result in results] == [outcome] * self.job.world_size
        assert len({str(result) for result in results}) == 1, results
        return results[0]

    def masters(self) -> dict[str, np.ndarray]:
        return self._tensors("master")

    def moments(self, number: int) -> dict[str, np.ndarray]:
        """State tensor ``number`` (from 1, in torch's order) of the trainable tensors."""
        return self._tensors(f"moment{number}", trainable_only=True)

    def served(self, version: int, rank: int = 0) -> dict[str, np.ndarray]:
        """Weights of a version as a worker fetches them."""
        values = {}
        for index, spec in enumerate(self.job.layers):
            flat = self.sessions[rank].fetch(index, version)
            values.update(_split(spec, flat))
        return values

    def _worker_step(self, rank: int, step: int, groups: Sequence[HyperParameters],
                     micro_batches: MicroBatches) -> luwu.CommitResult:
        session = self.sessions[rank]
        session.begin_step(step, groups, max_norm=self._max_norm)
        for number, gradients in enumerate(micro_batches):
            rest = micro_batches[number + 1:]
            for index in reversed(range(len(self.job.layers))):  # as a backward pass does
                spec = self.job.layers[index]
                if _in_batch(spec, gradients):
                    session.push(index, _segments(spec, gradients),
                                 close=not any(_in_batch(spec, later) for later in rest))
        for index, spec in enumerate(self.job.layers):
            if spec.trainable and not any(_in_batch(spec, batch) for batch in micro_batches):
                session.close_layer(index)
        return session.commit(step)

    def _tensors(self, quantity: str, trainable_only: bool = False) -> dict[str, np.ndarray]:
        values = {}
        for index, spec in enumerate(self.job.layers):
            if spec.trainable or not trainable_only:
                values.update(_split(spec, self.sessions[0].read(index, quantity), trainable_only))
        return values


def _in_batch(spec: LayerSpec, gradients: Values) -> bool:
    return any(tensor.name in gradients for tensor in spec.tensors)


def _segments(spec: LayerSpec, gradients: Values) -> list[Segment]:
    return [Segment(np.ascontiguousarray(gradients[tensor.name]), tensor.offset)
            for tensor in spec.tensors if tensor.trainable]


def _split(spec: LayerSpec, flat: np.ndarray,
           trainable_only: bool = False) -> dict[str, np.ndarray]:
    return {tensor.name: flat[tensor.offset:tensor.offset + tensor.elements].reshape(tensor.shape)
            for tensor in spec.tensors if tensor.trainable or not trainable_only}
