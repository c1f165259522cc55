"""Several workers and micro-batches against torch on the summed or averaged gradients."""

from __future__ import annotations

import data
import pytest
from fleet import Fleet
from luwu import SGD, Adagrad, AdamW, Lion
from oracle import Oracle, assert_equal

OPTIMIZERS = {
    "adamw": AdamW(lr=1e-3),
    "lion": Lion(lr=3e-4, weight_decay=0.1),
    "adagrad": Adagrad(lr=1e-2),
    "sgd_momentum": SGD(lr=1e-2, momentum=0.9),
    "sgd_nesterov": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2, nesterov=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_workers_equal_torch_on_the_mean(cluster, job_name, name, report):
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, world_size=2)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            parts = [data.gradients(job, step, rank) for rank in range(2)]
            fleet.step(step, [optimizer], [[part] for part in parts])
            oracle.step([optimizer], data.summed(parts, 0.5))
        report(assert_equal(fleet.masters(), oracle.masters()))
        assert_equal(fleet.served(data.STEPS, rank=1), fleet.masters())


def test_two_workers_may_sum_instead(cluster, job_name):
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, world_size=2, reduction="sum")
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(30):
            parts = [data.gradients(job, step, rank) for rank in range(2)]
            fleet.step(step, [optimizer], [[part] for part in parts])
            oracle.step([optimizer], data.summed(parts))
        assert_equal(fleet.masters(), oracle.masters())


def test_three_workers_equal_torch_on_the_mean(cluster, job_name, report):
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, world_size=3)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(100):
            parts = [data.gradients(job, step, rank) for rank in range(3)]
            fleet.step(step, [optimizer], [[part] for part in parts])
            oracle.step([optimizer], data.summed(parts, 1 / 3))
        # Three roundings in the daemons' mean, one in the oracle's.
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_micro_batches_equal_torch_accumulating_them(cluster, job_name, name):
    """torch adds one micro-batch after the other into ``grad``, rounding each time, as we do."""
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, reduction="sum")
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(50):
            parts = [data.gradients(job, step, micro=micro) for micro in range(4)]
            fleet.step(step, [optimizer], [parts])
            accumulated = dict(parts[0])
            for part in parts[1:]:
                accumulated = {key: accumulated[key] + value for key, value in part.items()}
            oracle.step([optimizer], accumulated)
        assert_equal(fleet.masters(), oracle.masters())


# Not Lion: the sign of a value near zero has no small differences.
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lion"])
def test_micro_batches_equal_one_big_batch(cluster, job_name, name, report):
    """The gradient of the big batch is the exact sum: rounding differs, the result hardly."""
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, reduction="sum")
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            parts = [data.gradients(job, step, micro=micro) for micro in range(4)]
            fleet.step(step, [optimizer], [parts])
            oracle.step([optimizer], data.summed(parts))
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))


def test_workers_with_different_numbers_of_micro_batches(cluster, job_name):
    """The sum runs over micro-batch 0 of each rank, then micro-batch 1, and so on."""
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, world_size=2, reduction="sum")
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(30):
            counts = (1 + step % 3, 1 + (step + 1) % 3)
            parts = [[data.gradients(job, step, rank, micro) for micro in range(counts[rank])]
                     for rank in range(2)]
            fleet.step(step, [optimizer], parts)
            ordered = [parts[rank][micro] for micro in range(3) for rank in range(2)
                       if micro < counts[rank]]
            total = dict(ordered[0])
            for part in ordered[1:]:
                total = {key: total[key] + value for key, value in part.items()}
            oracle.step([optimizer], total)
        assert_equal(fleet.masters(), oracle.masters())
