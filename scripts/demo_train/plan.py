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
_WARMUP_STEPS = 20
_LOWEST = 0.1  # of the learning rate, at the end


@dataclass(frozen=True)
class Plan:
    """``steps``: length of the learning-rate schedule; ``stop_after``: steps that this run really
    makes. ``rows``: sequences per worker and step."""

    steps: int
    stop_after: int
    workers: int
    rows: int = 8
    seed: int = 1
    lr: float = 1.5e-3
    weight_decay: float = 0.1
    wire: str = "bf16"
    text: Path = Path("kjv.txt")

    def shape(self) -> Shape:
        return Shape()

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
