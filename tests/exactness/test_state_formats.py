"""State in fewer bits: exact where that is promised, else unbiased, repeatable, and good enough to
train with."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator

import data
import numpy as np
import pytest
from cluster import Cluster
from conftest import LUWUD
from fleet import Fleet, layer
from luwu import SGD, Adagrad, Adam, AdamW, DType, HyperParameters, Lion
from test_update_modes import State, assert_same_bits

OPTIMIZERS: dict[str, HyperParameters] = {
    "adamw": AdamW(lr=3e-2, weight_decay=0.0), "adam": Adam(lr=3e-2), "lion": Lion(lr=5e-2),
    "adagrad": Adagrad(lr=0.5), "sgd_momentum": SGD(lr=0.05, momentum=0.9),
}
ARRAYS = {"adamw": 2, "adam": 2, "lion": 1, "adagrad": 1, "sgd_momentum": 1}
PRECISIONS = ["bfloat16", "blockwise8"]
ROWS, COLUMNS = 40, 53


@pytest.fixture(scope="module")
def single() -> Iterator[Cluster]:
    """One daemon, reached by shm."""
    with Cluster(LUWUD, nodes=1, heartbeat_ms=2000, lease_ms=20000) as running:
        yield running


def regress(endpoints: str, name: str, optimizer: HyperParameters, arrays: int = 0,
            steps: int = 150, **options: Any) -> tuple[list[float], State]:
    """Linear regression on noisy batches: the loss on clean data in every step, and the state."""
    job = data.make_job(name, optimizer, layers=(
        layer("w", ("weight", (ROWS, COLUMNS)), ("bias", (ROWS,)), align=1),), **options)
    random = np.random.default_rng(5)
    truth = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    weights = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in job.layers[0].tensors}
    losses = []
    with Fleet(endpoints, job, weights) as fleet:
        for step in range(steps):
            served = fleet.served(step)
            batch = random.standard_normal((64, COLUMNS)).astype(np.float32)
            noise = 0.1 * random.standard_normal((64, ROWS)).astype(np.float32)
            error = batch @ (served["w.weight"] - truth).T + served["w.bias"] - noise
            losses.append(float(np.mean(np.square(served["w.weight"] - truth))))
            gradients = {"w.weight": (error.T @ batch / 64), "w.bias": error.mean(axis=0)}
            rate = optimizer.lr * (1 - step / steps)
            fleet.step(step, [dataclasses.replace(optimizer, lr=rate)], [[gradients]])
        state = {f"master {key}": value for key, value in fleet.masters().items()}
        for number in range(1, arrays + 1):
            state.update({f"{number} {key}": value
                          for key, value in fleet.moments(number).items()})
    return losses, state


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_converges_like_float32(cluster, job_name, name, precision, report):
    optimizer = OPTIMIZERS[name]
    exact, _ = regress(cluster.endpoints, f"{job_name}-exact", optimizer)
    coarse, _ = regress(cluster.endpoints, f"{job_name}-coarse",
                        dataclasses.replace(optimizer, state_precision=precision))
    assert exact[-1] < exact[0] / 20, "the comparison is of a run that learns"
    assert coarse[-1] < exact[0] / 10 and coarse[-1] < 2 * exact[-1] + 1e-3
    # Nowhere on the way far behind, either.
    assert all(b < 1.3 * a + 0.02 * exact[0] for a, b in zip(exact, coarse))
    report(coarse[-1] / exact[-1] - 1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_run_has_the_same_bits_on_one_daemon_and_two(
        cluster, single, job_name, name, precision):
    optimizer = dataclasses.replace(OPTIMIZERS[name], state_precision=precision, rounding_seed=3)
    runs = [regress(endpoints, f"{job_name}-{number}", optimizer, ARRAYS[name], steps=30)
            for number, endpoints in enumerate(
                (cluster.endpoints, cluster.endpoints, single.endpoints))]
    for losses, state in runs[1:]:
        assert losses == runs[0][0]
        assert_same_bits(state, runs[0][1])
    other = regress(cluster.endpoints, f"{job_name}-seed",
                    dataclasses.replace(optimizer, rounding_seed=4), steps=30)
    assert other[0] != runs[0][0], "the seed decides the rounding"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", ["deferred", "speculative"])
def test_the_update_mode_does_not_change_coarse_state_either(cluster, job_name, mode, precision):
    optimizer = dataclasses.replace(OPTIMIZERS["adamw"], state_precision=precision)
    at_once = regress(cluster.endpoints, f"{job_name}-immediate", optimizer, 2, steps=30)
    late = regress(cluster.endpoints, f"{job_name}-{mode}", optimizer, 2, steps=30,
                   update_mode=mode)
    assert late[0] == at_once[0]
    assert_same_bits(late[1], at_once[1])


@pytest.mark.parametrize("mode", ["immediate", "deferred", "speculative"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_split_masters_are_float32_masters(cluster, job_name, name, mode):
    """Given the same gradients, bit for bit; the served copy rounds ties away from zero."""
    results = []
    for form in ("float32", "split"):
        optimizer = dataclasses.replace(OPTIMIZERS[name], master_format=form)
        job = data.make_job(f"{job_name}-{form}", optimizer, served=DType.BFLOAT16,
                            update_mode=mode)
        weights = data.weights(job)
        with Fleet(cluster.endpoints, job, weights) as fleet:
            for step in range(40):
                gradients = data.gradients(job, step)
                if step % 10 == 4:
                    gradients["head.bias"][0] = np.nan
                fleet.step(step, [optimizer], [[gradients]],
                           outcome="skipped" if step % 10 == 4 else "applied")
            results.append(fleet.masters())
            served = fleet.served(40)
    assert_same_bits(results[1], results[0])
    assert_same_bits(served, {
        key: ((value.view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
        for key, value in results[1].items()})


def test_state_takes_the_bytes_that_it_should(cluster, job_name):
    """Of moments, per parameter: 8 in float32, 4 in bfloat16, 2 + 1/32 in 8 bits."""
    sizes = {}
    for precision in ["float32", *PRECISIONS]:
        optimizer = AdamW(state_precision=precision)
        job = data.make_job(f"{job_name}-{precision}", optimizer, update_mode="deferred",
                            layers=(layer("w", ("weight", (512, 1024))),), shard_elements=1 << 16)
        with Fleet(cluster.endpoints, job, data.weights(job)) as fleet:
            status = fleet.sessions[0].status()
        sizes[precision] = sum(
            int(each["state_bytes"]) for node in status["nodes"] for each in node["status"]["jobs"]
            if each["name"] == job.name) / (512 * 1024)
    assert sizes["float32"] == pytest.approx(12, rel=0.01)
    assert sizes["bfloat16"] == pytest.approx(8, rel=0.01)
    assert sizes["blockwise8"] == pytest.approx(6 + 1 / 32, rel=0.01)
