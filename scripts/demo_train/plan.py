"""What one training run is: passed from the demo to its trainers as command-line options."""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt import Shape

ROWS_HELD_OUT = 64
# Learning rate and weight decay (of matrices) that suit the model, by optimizer.
RATES = {"adamw": (1.5e-3, 0.1), "adam": (1.5e-3, 0.0), "lion": (2.5e-4, 0.6),
         "adagrad": (1e-2, 0.0), "sgd": (0.3, 0.0)}
SGD_MOMENTUM = 0.9
_WARMUP_STEPS = 20
_LOWEST = 0.1  # of the learning rate, at the end


@dataclass(frozen=True)
class Plan:
    """``steps``: length of the learning-rate schedule; ``stop_after``: steps that this run really
    makes. ``rows``: sequences per worker and step. ``clip_norm``: of all gradients; 0: no limit.
    ``state_precision``, ``master_format``, ``update_mode``, ``durable_every``: as in ``luwu``."""

    steps: int
    stop_after: int
    workers: int
    rows: int = 8
    seed: int = 1
    optimizer: str = "adamw"
    state_precision: str = "float32"
    master_format: str = "float32"
    update_mode: str = "auto"
    clip_norm: float = 0.0
    wire: str = "bf16"
    durable_every: int = 0
    text: Path = Path("kjv.txt")

    def shape(self) -> Shape:
        return Shape()

    @property
    def lr(self) -> float:
        return RATES[self.optimizer][0]

    @property
    def weight_decay(self) -> float:
        return RATES[self.optimizer][1]

    @property
    def resolved_update_mode(self) -> str:
        if self.update_mode != "auto":
            return self.update_mode
        return "deferred" if self.clip_norm else "immediate"

    @property
    def tokens_per_step(self) -> int:
        return self.workers * self.rows * self.shape().context

    def lr_factor(self, step: int) -> float:
        """Warm-up, then a cosine; for torch's LambdaLR."""
        if step < _WARMUP_STEPS:
            return (step + 1) / _WARMUP_STEPS
        done = min(1.0, (step - _WARMUP_STEPS) / max(1, self.steps - _WARMUP_STEPS))
        return _LOWEST + (1 - _LOWEST) * 0.5 * (1 + math.cos(math.pi * done))

    def arguments(self) -> list[str]:
        """Options from which ``from_arguments`` makes an equal plan."""
        return [text for field in dataclasses.fields(self)
                for text in (f"--{field.name.replace('_', '-')}", str(getattr(self, field.name)))]


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Declares one option for each field of ``Plan``."""
    for field in dataclasses.fields(Plan):
        parser.add_argument(f"--{field.name.replace('_', '-')}", required=True, type={
            "int": int, "float": float, "Path": Path, "str": str}[str(field.type)])


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan in parsed options."""
    values: dict[str, Any] = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(Plan)}
    return Plan(**values)
