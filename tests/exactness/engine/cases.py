"""The table of combinations, generated: every optimizer, state precision and master format."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from engine import MASTERS, PRECISIONS, Optimizer


@dataclass(frozen=True)
class Case:
    name: str
    optimizer: Optimizer
    hyper: dict[str, float] = field(hash=False, default_factory=dict)


_ADAM = {"lr": 3e-3, "weight_decay": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
_BASE = [
    Case("adamw", Optimizer("adamw"), _ADAM),
    Case("adam", Optimizer("adam"), _ADAM),
    Case("adamw amsgrad", Optimizer("adamw", amsgrad=True), _ADAM),
    Case("adam amsgrad", Optimizer("adam", amsgrad=True), _ADAM),
    Case("sgd", Optimizer("sgd"), {"lr": 1e-2, "weight_decay": 0.01}),
    Case("sgd momentum", Optimizer("sgd", momentum=True),
         {"lr": 1e-2, "weight_decay": 0.01, "momentum": 0.9, "dampening": 0.1}),
    Case("sgd nesterov", Optimizer("sgd", momentum=True),
         {"lr": 1e-2, "weight_decay": 0.01, "momentum": 0.9, "nesterov": 1}),
    Case("lion", Optimizer("lion"),
         {"lr": 1e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99}),
    Case("adagrad", Optimizer("adagrad", initial_accumulator=0.1),
         {"lr": 1e-2, "weight_decay": 0.01, "eps": 1e-10, "lr_decay": 1e-3}),
]


def all_combinations() -> list[Case]:
    """Those the daemon accepts and those it refuses."""
    return [Case(f"{case.name}, {precision} state, {master} master",
                 replace(case.optimizer, precision=precision, master=master, seed=7), case.hyper)
            for case, precision, master in itertools.product(_BASE, PRECISIONS, MASTERS)]


def fp32_cases() -> list[Case]:
    return list(_BASE)
