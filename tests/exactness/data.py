"""Weights and gradients for the exactness tests, the same on every run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fleet import layer
from luwu import DType, HyperParameters, JobSpec, LayerSpec

STEPS = 200
SHARD = 1024  # elements; layers are cut into several shards with odd tails, on both daemons


def layers() -> tuple[LayerSpec, ...]:
    """Several shards in a layer, tensors across shard borders, and sizes around vector lengths."""
    return (
        layer("embedding", ("weight", (97, 33))),
        layer("block", ("norm", (33,)), ("attention", (33, 99)), ("bias", (99,)),
              ("scalar", (1,)), ("out", (65, 33))),
        layer("head", ("weight", (31, 33)), ("bias", (31,))),
    )


def make_job(name: str, optimizer: HyperParameters, **options: Any) -> JobSpec:
    """fp32 on the wire; one worker and ``layers()`` unless ``options`` say otherwise."""
    settings = dict(world_size=1, layers=layers(), served=DType.FLOAT32, gradients=DType.FLOAT32,
                    shard_elements=SHARD, overflow_bytes=1 << 20)
    return JobSpec(name=name, optimizer=optimizer, **{**settings, **options})


def weights(job: JobSpec, seed: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {tensor.name: (0.02 * random.standard_normal(tensor.shape)).astype(np.float32)
            for layer_spec in job.layers for tensor in layer_spec.tensors}


def gradients(job: JobSpec, step: int, rank: int = 0, micro: int = 0) -> dict[str, np.ndarray]:
    """Of every trainable tensor. Magnitudes change from step to step, as in training."""
    random = np.random.default_rng([step, rank, micro])
    scale = 10.0 ** random.uniform(-4, 0)
    return {tensor.name: (scale * random.standard_normal(tensor.shape)).astype(np.float32)
            for layer_spec in job.layers for tensor in layer_spec.tensors if tensor.trainable}


def scheduled(lr: float, step: int) -> float:
    """Warm-up, then cosine: another value in every step."""
    return lr * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))


def summed(parts: list[dict[str, np.ndarray]], factor: float = 1.0) -> dict[str, np.ndarray]:
    """The exact sum times ``factor``, rounded once."""
    return {name: (factor * sum(part[name].astype(np.float64) for part in parts)).astype(np.float32)
            for name in parts[0]}
