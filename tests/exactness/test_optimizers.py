"""One worker, 200 steps of each optimizer, with another learning rate in every step."""

from __future__ import annotations

import dataclasses

import data
import pytest
from fleet import Fleet
from luwu import SGD, Adagrad, Adam, AdamW, Lion
from luwu.optimizers import HyperParameters
from oracle import Oracle, assert_equal

OPTIMIZERS = {
    "adamw": AdamW(lr=1e-3),
    "adamw_other_betas": AdamW(lr=2e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw_no_decay": AdamW(lr=1e-3, weight_decay=0.0),
    "adamw_amsgrad": AdamW(lr=1e-3, amsgrad=True),
    "adam": Adam(lr=1e-3),
    "adam_l2": Adam(lr=2e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adam_l2_amsgrad": Adam(lr=1e-3, weight_decay=1e-2, amsgrad=True),
    "lion": Lion(lr=3e-4),
    "lion_decay": Lion(lr=3e-4, betas=(0.95, 0.98), weight_decay=0.1),
    "adagrad": Adagrad(lr=1e-2),
    "adagrad_decay": Adagrad(lr=1e-2, lr_decay=1e-2, weight_decay=1e-2),
    "adagrad_initial": Adagrad(lr=1e-2, initial_accumulator_value=0.1, eps=1e-8),
    "sgd": SGD(lr=1e-2),
    "sgd_decay": SGD(lr=1e-2, weight_decay=1e-2),
    "sgd_momentum": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2),
    "sgd_dampening": SGD(lr=1e-2, momentum=0.9, dampening=0.1),
    "sgd_nesterov": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2, nesterov=True),
}


def state_of(optimizer: HyperParameters) -> list[str]:
    """torch's state tensors in order."""
    if isinstance(optimizer, (Adam, AdamW)):
        return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * optimizer.amsgrad
    if isinstance(optimizer, SGD):
        return ["momentum_buffer"] if optimizer.momentum else []
    return ["exp_avg"] if isinstance(optimizer, Lion) else ["sum"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_hundred_steps_equal_torch(cluster, job_name, name, report):
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        assert_equal(fleet.served(0), weights)
        for step in range(data.STEPS):
            gradients = data.gradients(job, step)
            groups = [dataclasses.replace(optimizer, lr=data.scheduled(optimizer.lr, step))]
            fleet.step(step, groups, [[gradients]])
            oracle.step(groups, gradients)
            if step % 20 == 0:
                assert_equal(fleet.served(step + 1), oracle.masters())
        masters = fleet.masters()
        report(assert_equal(masters, oracle.masters()))
        assert_equal(fleet.served(data.STEPS), masters)
        for number, key in enumerate(state_of(optimizer), start=1):
            assert_equal(fleet.moments(number), oracle.state(key))


def test_hyper_parameters_may_all_change_between_steps(cluster, job_name):
    job = data.make_job(job_name, AdamW())
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(30):
            gradients = data.gradients(job, step)
            groups = [AdamW(lr=1e-3 / (step + 1), betas=(0.85 + step / 300, 0.99 + step / 4000),
                            eps=10.0 ** -(6 + step % 3), weight_decay=step / 100)]
            fleet.step(step, groups, [[gradients]])
            oracle.step(groups, gradients)
        assert_equal(fleet.masters(), oracle.masters())
