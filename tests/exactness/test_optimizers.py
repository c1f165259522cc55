"""One worker, 200 steps of each optimizer, with another learning rate in every step."""

from __future__ import annotations

import dataclasses

import data
import pytest
from fleet import Fleet
from luwu import SGD, AdamW
from oracle import Oracle, assert_equal

OPTIMIZERS = {
    "adamw": AdamW(lr=1e-3),
    "adamw_other_betas": AdamW(lr=2e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw_no_decay": AdamW(lr=1e-3, weight_decay=0.0),
    "sgd": SGD(lr=1e-2),
    "sgd_decay": SGD(lr=1e-2, weight_decay=1e-2),
    "sgd_momentum": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2),
    "sgd_dampening": SGD(lr=1e-2, momentum=0.9, dampening=0.1),
    "sgd_nesterov": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2, nesterov=True),
}


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
        if isinstance(optimizer, AdamW):
            assert_equal(fleet.moments(1), oracle.state("exp_avg"))
            assert_equal(fleet.moments(2), oracle.state("exp_avg_sq"))
        elif optimizer.momentum:
            assert_equal(fleet.moments(1), oracle.state("momentum_buffer"))


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
