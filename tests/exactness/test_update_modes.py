"""When the update runs never changes its bits: immediate, deferred and speculative, over one daemon
or two."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import data
import numpy as np
import pytest
from cluster import Cluster
from conftest import LUWUD
from fleet import Fleet, layer
from luwu import (
    SGD, Adagrad, Adam, AdamW, ArgumentError, DType, HyperParameters, Lion, Session,
)
from oracle import Oracle, assert_equal

STEPS = 40
OPTIMIZERS: dict[str, HyperParameters] = {
    "adamw": AdamW(lr=1e-3), "adam_amsgrad": Adam(lr=1e-3, weight_decay=0.1, amsgrad=True),
    "lion": Lion(lr=3e-4, weight_decay=0.1), "adagrad": Adagrad(lr=1e-2, lr_decay=1e-2),
    "sgd": SGD(lr=1e-2), "sgd_nesterov": SGD(lr=1e-2, momentum=0.9, nesterov=True),
}
ARRAYS = {"adamw": 2, "adam_amsgrad": 3, "lion": 1, "adagrad": 1, "sgd": 0, "sgd_nesterov": 1}

State = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def single() -> Iterator[Cluster]:
    """One daemon, reached by tcp."""
    with Cluster(LUWUD, nodes=1, shm=[False], heartbeat_ms=2000, lease_ms=20000) as running:
        yield running


def layers() -> tuple:
    """With a frozen tensor, and groups inside of shards."""
    return (layer("a", ("norm", (70,), 1), ("weight", (45, 50)), ("table", (30, 7), 0, False),
                  ("bias", (45,), 1), align=1),
            layer("b", ("weight", (33, 70)), ("bias", (33,), 1)),
            layer("c", ("weight", (17, 9)), align=1))


def train(endpoints: str, name: str, optimizer: HyperParameters, arrays: int,
          max_norm: Any = 0.0, **options: Any) -> State:
    """Two workers, two micro-batches, absent layers and steps that are skipped. The masters and all
    state afterwards, and what was served on the way."""
    job = data.make_job(name, optimizer, world_size=2, layers=layers(), groups=2, **options)
    weights = data.weights(job)
    values: State = {}
    with Fleet(endpoints, job, weights) as fleet:
        for step in range(STEPS):
            parts = [[data.gradients(job, step, rank, micro) for micro in range(2)]
                     for rank in range(2)]
            if step % 4 == 1:
                for part in parts[0] + parts[1]:
                    for key in [key for key in part if key.startswith("b.")]:
                        del part[key]
            bad = step % 9 == 5
            if bad:
                parts[1][1]["c.weight"][3, 4] = np.nan
            fleet.step(step, [optimizer] * 2, parts, outcome="skipped" if bad else "applied",
                       max_norm=max_norm)
            if step % 13 == 0 or bad:
                values.update({f"served {step} {key}": value
                               for key, value in fleet.served(step + 1).items()})
        values.update({f"master {key}": value for key, value in fleet.masters().items()})
        for number in range(1, arrays + 1):
            values.update({f"{number} {key}": value
                           for key, value in fleet.moments(number).items()})
    return values


def assert_same_bits(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        unequal = np.flatnonzero(value.view(np.uint32) != theirs[name].view(np.uint32))
        assert unequal.size == 0, f"{name}: {unequal.size} elements, first {unequal[0]}"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_modes_give_the_same_bits(cluster, job_name, name):
    results = [train(cluster.endpoints, f"{job_name}-{mode}", OPTIMIZERS[name], ARRAYS[name],
                     update_mode=mode) for mode in ("immediate", "deferred", "speculative")]
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("scope", ["global", "group", "layer"])
@pytest.mark.parametrize("held", [DType.FLOAT32, DType.BFLOAT16])
def test_speculation_that_fails_is_redone_exactly(cluster, job_name, scope, held):
    max_norm = [0.1, 0.5] if scope == "group" else 0.25
    results = [train(cluster.endpoints, f"{job_name}-{mode}", OPTIMIZERS["adamw"], 2, max_norm,
                     update_mode=mode, clip_scope=scope, held=held)
               for mode in ("deferred", "speculative")]
    assert_same_bits(results[1], results[0])


def test_a_limit_that_is_never_reached_changes_nothing(cluster, job_name):
    free = train(cluster.endpoints, f"{job_name}-free", OPTIMIZERS["adamw"], 2)
    limited = train(cluster.endpoints, f"{job_name}-limited", OPTIMIZERS["adamw"], 2, 1e6,
                    clip_scope="global")
    assert_same_bits(limited, free)


def test_held_bfloat16_sums_differ_from_float32_only_by_their_rounding(cluster, job_name):
    optimizer = SGD(lr=1.0)
    job = data.make_job(job_name, optimizer, update_mode="deferred", held=DType.BFLOAT16)
    zeros = {name: np.zeros_like(value) for name, value in data.weights(job).items()}
    gradients = data.gradients(job, 0)
    with Fleet(cluster.endpoints, job, zeros) as fleet:
        fleet.step(0, [optimizer], [[gradients]])
        for name, value in fleet.masters().items():
            bits = gradients[name].view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            assert np.array_equal(-value, rounded.view(np.float32)), name


@pytest.mark.parametrize("mode, scope", [
    ("immediate", "none"), ("deferred", "none"), ("speculative", "none"), ("deferred", "global"),
    ("speculative", "global")])
def test_one_daemon_and_two_give_the_same_bits(cluster, single, job_name, mode, scope):
    options: dict[str, Any] = dict(update_mode=mode, clip_scope=scope)
    max_norm = 0.25 if scope == "global" else 0.0
    two = train(cluster.endpoints, job_name, OPTIMIZERS["adamw"], 2, max_norm, **options)
    one = train(single.endpoints, job_name, OPTIMIZERS["adamw"], 2, max_norm, **options)
    assert_same_bits(one, two)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["immediate", "deferred", "speculative"])
def test_a_skipped_step_is_as_if_it_had_never_been(cluster, job_name, name, mode):
    """torch, which is not even told of the step, is the reference."""
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, update_mode=mode)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(60):
            gradients = data.gradients(job, step)
            if step % 3 == 1:
                gradients["block.out"][step % 65, 5] = np.inf
                result = fleet.step(step, [optimizer], [[gradients]], outcome="skipped")
                assert "block.out" in result.culprit
            else:
                fleet.step(step, [optimizer], [[gradients]])
                oracle.step([optimizer], gradients)
            assert_equal(fleet.served(step + 1), oracle.masters())
        assert_equal(fleet.masters(), oracle.masters())


@pytest.mark.parametrize("scope", ["none", "global"])
def test_a_worker_that_comes_back_right_after_a_deferred_commit_finds_the_step_done(
        cluster, job_name, scope):
    """The decision stands when ``commit`` returns, while updates may still run: the next step of a
    new process waits for what it needs."""
    optimizer = AdamW(lr=1e-2)
    big = tuple(layer(f"l{number}", ("weight", (512, 1024))) for number in range(4))
    job = data.make_job(job_name, optimizer, layers=big, update_mode="deferred", clip_scope=scope,
                        shard_elements=1 << 16)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    limit = 0.0 if scope == "none" else 1e6
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(4):
            gradients = data.gradients(job, step)
            fleet.step(step, [optimizer], [[gradients]], max_norm=limit)
            oracle.step([optimizer], gradients)
            left = fleet.sessions[0]
            fleet.sessions[0] = Session(cluster.endpoints, job, 0, restart_count=step + 1)
            left.close()
            assert fleet.sessions[0].current_step == step + 1
            assert_equal(fleet.served(step + 1), oracle.masters())
        assert_equal(fleet.masters(), oracle.masters())


@pytest.mark.parametrize("options, words", [
    (dict(update_mode="immediate", clip_scope="global"), "clip_scope global needs the norm"),
    (dict(update_mode="speculative", keep_undo_state=False), "speculative works in a second"),
    (dict(held=DType.BFLOAT16), "held_dtype bfloat16 without held sums"),
    (dict(held=DType.FLOAT16, update_mode="deferred"), "held_dtype is float16"),
    (dict(keep_undo_state=False), "keep_undo_state is off"),
    (dict(optimizer=AdamW(amsgrad=True, state_precision="blockwise8")), "amsgrad keeps a maximum"),
    (dict(optimizer=AdamW(master_format="split")), "master_format split"),
])
def test_combinations_that_cannot_work_are_refused_with_the_reason(
        cluster, job_name, options, words):
    job = data.make_job(job_name, **{"optimizer": AdamW(), **options})
    with pytest.raises(ArgumentError, match=words):
        Fleet(cluster.endpoints, job, data.weights(job))
