"""The engine for 1,000 steps against torch.optim and against the papers' formulas in float64:
two parameter groups, a schedule, clipping, accumulation over micro-steps and ranks, skipped steps,
absent layers, odd lengths."""

from __future__ import annotations

import itertools
import math
from typing import Iterator

import numpy as np
import pytest
import torch

import reference
from cases import Case, all_combinations, fp32_cases
from engine import Optimizer, Shard, choose_portable
from lion import Lion
from oracle import LIMIT, PLAIN_KERNELS

STEPS = 1000
LENGTHS = (1, 63, 130, 257)
RANKS = 2
WIRE = ("float32", "bfloat16", "float16")
NAMES = ("master", "first", "second", "third")


def to_wire(values: torch.Tensor, dtype: str) -> np.ndarray:
    converted = values.to(getattr(torch, dtype))
    if dtype == "bfloat16":
        return converted.view(torch.int16).numpy().view(np.uint16)
    return converted.numpy()


def from_wire(values: np.ndarray, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(values).float()


class Schedule:
    """What happens in each step, from a seed."""

    def __init__(self, seed: int, dtype: str) -> None:
        self._random = np.random.default_rng(seed)
        self._dtype = dtype

    def steps(self) -> Iterator[tuple[int, list[list[np.ndarray] | None]]]:
        for step in range(STEPS):
            micro_steps = 1 + step % 2
            parts: list[list[np.ndarray] | None] = []
            for index, length in enumerate(LENGTHS):
                absent = (step + index) % 13 == 0
                size = 10.0 ** self._random.integers(-3, 1)
                parts.append(None if absent else [
                    to_wire(torch.from_numpy(
                        (self._random.standard_normal(length) * size).astype(np.float32)),
                        self._dtype) for _ in range(micro_steps * RANKS)])
            if step % 17 != 5:  # the others are skipped
                yield step, parts


def hyper_at(case: Case, step: int, group: int) -> dict[str, float]:
    values = dict(case.hyper)
    values["lr"] *= 0.5 * (1 + math.cos(math.pi * step / STEPS))
    if group == 1:
        values["weight_decay"] = 0.0
    return values


def torch_optimizer(case: Case, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    kind = case.optimizer.kind
    if kind == "lion":
        return Lion([{"params": [p]} for p in parameters], lr=1.0)
    name = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "adagrad": "Adagrad"}[kind]
    fixed = {"amsgrad": True} if case.optimizer.amsgrad else {}
    if kind == "adagrad":
        fixed["initial_accumulator_value"] = case.optimizer.initial_accumulator
        fixed["lr_decay"] = case.hyper["lr_decay"]
    return getattr(torch.optim, name)([{"params": [p]} for p in parameters], lr=1.0, **fixed)


def torch_group(values: dict[str, float]) -> dict[str, object]:
    group: dict[str, object] = {key: value for key, value in values.items()
                                if key not in ("beta1", "beta2", "nesterov")}
    if "beta1" in values:
        group["betas"] = (values["beta1"], values["beta2"])
    if "nesterov" in values:
        group["nesterov"] = bool(values["nesterov"])
    return group


def initial_weights() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal(length).astype(np.float32) for length in LENGTHS]


def make_shards(optimizer: Optimizer, served: str) -> list[Shard]:
    return [Shard(optimizer, weights, served, job_element=1000 * index)
            for index, weights in enumerate(initial_weights())]


def run(case: Case, shards: list[Shard], wire: str, seed: int = 3) -> None:
    for step, parts in Schedule(seed, wire).steps():
        factor = clip_factor(parts, wire)
        for index, part in enumerate(parts):
            if part is not None:
                shards[index].update(part, wire, scale=factor / RANKS,
                                     **hyper_at(case, step, index % 2))


def summed(part: list[np.ndarray], wire: str) -> torch.Tensor:
    total = from_wire(part[0], wire)
    for more in part[1:]:
        total = total + from_wire(more, wire)
    return total


def clip_factor(parts: list[list[np.ndarray] | None], wire: str, max_norm: float = 4.0) -> float:
    squares = sum(float((summed(part, wire).double() / RANKS).square().sum())
                  for part in parts if part is not None)
    return min(1.0, max_norm / (math.sqrt(squares) + 1e-6))


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    theirs = theirs.astype(np.float64)
    typical = np.sqrt(np.mean(np.square(theirs)))
    return float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), typical)))


@pytest.mark.parametrize("case, wire", itertools.product(fp32_cases(), WIRE),
                         ids=lambda value: value.name if isinstance(value, Case) else value)
def test_equals_torch_after_1000_steps(case: Case, wire: str, report) -> None:
    shards = make_shards(case.optimizer, "float32")
    parameters = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in initial_weights()]
    optimizer = torch_optimizer(case, parameters)
    for step, parts in Schedule(3, wire).steps():
        scale = np.float32(clip_factor(parts, wire) / RANKS)
        for index, part in enumerate(parts):
            values = hyper_at(case, step, index % 2)
            optimizer.param_groups[index].update(torch_group(values))
            parameters[index].grad = None
            if part is not None:
                parameters[index].grad = summed(part, wire) * float(scale)
                shards[index].update(part, wire, scale=scale, **values)
        optimizer.step()
    worst = 0.0
    for shard, parameter in zip(shards, parameters):
        worst = max(worst, relative(shard.read(), parameter.detach().numpy()))
        if PLAIN_KERNELS:
            assert shard.read().tobytes() == parameter.detach().numpy().tobytes()
    report(worst)
    assert worst <= (0 if PLAIN_KERNELS else LIMIT)


REFERENCE = {"adamw": reference.adam, "adam": reference.adam, "sgd": reference.sgd,
             "lion": reference.lion, "adagrad": reference.adagrad}


@pytest.mark.parametrize("portable", [False, True], ids=["best kernel", "portable kernel"])
@pytest.mark.parametrize("case", fp32_cases(), ids=lambda case: case.name)
def test_each_step_is_the_papers_formula(case: Case, portable: bool, report) -> None:
    """Every step from the engine's own state: what one update may be off is a few roundings."""
    choose_portable(portable)
    shards = make_shards(case.optimizer, "float32")
    extra = {}
    if case.optimizer.kind in ("adam", "adamw"):
        extra = {"decoupled": case.optimizer.kind == "adamw", "amsgrad": case.optimizer.amsgrad}
    worst = 0.0
    for step, parts in Schedule(5, "float32").steps():
        ours: dict[str, list[np.ndarray]] = {}
        theirs: dict[str, list[np.ndarray]] = {}
        for index, part in enumerate(parts):
            if part is None:
                continue
            shard = shards[index]
            values = hyper_at(case, step, index % 2)
            state = {name: shard.read(k).astype(np.float64)
                     for k, name in enumerate(NAMES[:len(shard.arrays)])}
            gradient = summed(part, "float32").double().numpy() / RANKS
            shard.update(part, "float32", scale=1 / RANKS, **values)
            REFERENCE[case.optimizer.kind](state, gradient, shard.applied, **values, **extra)
            for k, name in enumerate(NAMES[:len(shard.arrays)]):
                ours.setdefault(name, []).append(shard.read(k))
                theirs.setdefault(name, []).append(state[name])
        for name in ours:  # over all shards: one element alone may have cancelled
            worst = max(worst, relative(np.concatenate(ours[name]), np.concatenate(theirs[name])))
    choose_portable(False)
    report(worst)
    assert worst <= LIMIT


@pytest.mark.parametrize("case", all_combinations(), ids=lambda case: case.name)
def test_every_accepted_combination_has_the_same_bits_on_every_kernel(case: Case) -> None:
    """... and in every gradient and served dtype; the others are refused."""
    if not case.optimizer.is_valid():
        assert case.optimizer.amsgrad and case.optimizer.precision == "blockwise8"
        return
    for wire, served in itertools.product(WIRE, WIRE):
        if case.optimizer.master == "split" and served != "bfloat16":
            continue
        results = []
        for portable in (False, True):
            choose_portable(portable)
            shards = make_shards(case.optimizer, served)
            for step, parts in itertools.islice(Schedule(9, wire).steps(), 20):
                for index, part in enumerate(parts):
                    if part is not None:
                        shards[index].update(part, wire, scale=1 / RANKS,
                                             **hyper_at(case, step, index % 2))
            results.append([array.tobytes() for shard in shards
                            for array in [*shard.arrays, shard.served]])
        choose_portable(False)
        assert results[0] == results[1], (wire, served)


@pytest.mark.parametrize("precision", ["bfloat16", "blockwise8"])
def test_low_precision_state_stays_near_fp32(precision: str, report) -> None:
    """The weights of 1,000 steps under AdamW with low-precision moments, against fp32 moments."""
    base = fp32_cases()[0]
    exact = make_shards(base.optimizer, "float32")
    rough = make_shards(Optimizer("adamw", precision=precision, seed=11), "float32")
    run(base, exact, "float32")
    run(base, rough, "float32")
    worst = max(float(np.sqrt(np.mean((a.read() - b.read())**2)) / np.std(a.read()))
                for a, b in list(zip(exact, rough))[1:])
    report(worst)
    assert worst < 0.25


def test_a_split_master_is_the_fp32_master() -> None:
    base = fp32_cases()[0]
    whole = make_shards(base.optimizer, "bfloat16")
    split = make_shards(Optimizer("adamw", master="split"), "bfloat16")
    run(base, whole, "bfloat16")
    run(base, split, "bfloat16")
    for a, b in zip(whole, split):
        assert a.read().tobytes() == b.read().tobytes()
        # Served copies are both the nearest bf16; only exact ties may differ.
        assert np.mean(a.served.view(np.uint16) == b.served.view(np.uint16)) > 0.99
