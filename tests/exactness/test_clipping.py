"""Gradient norms and clipping over two daemons against ``torch.nn.utils.clip_grad_norm_``."""

from __future__ import annotations

import math
from typing import Iterable

import data
import numpy as np
import pytest
import torch
from fleet import Fleet, layer
from luwu import SGD, Adam, AdamW, ArgumentError, Session
from oracle import LIMIT, Oracle, assert_equal

OPTIMIZERS = {"adamw": AdamW(lr=1e-3), "adam_amsgrad": Adam(lr=1e-3, amsgrad=True),
              "sgd_momentum": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2)}
MODES = ["deferred", "speculative"]


def limit_of(step: int) -> float:
    """Another limit in each step; none in some; of gradients of norm 0.01 to 100 it clips most."""
    return 0.0 if step % 7 == 3 else 10.0 ** math.sin(step)


def clip(parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
    """torch's own; the norm is computed in float64, which torch's float32 one only approximates."""
    present = [p for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in present))
    if limit:
        torch.nn.utils.clip_grad_norm_(present, limit)
    return norm


def grouped_layers() -> tuple:
    return (layer("a", ("norm", (70,), 1), ("weight", (45, 50)), ("bias", (45,), 1)),
            layer("b", ("weight", (33, 70)), ("bias", (33,), 1), align=1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_global_norm_equals_torch(cluster, job_name, name, mode, report):
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, world_size=2, clip_scope="global", update_mode=mode)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    clipped = 0
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            parts = [data.gradients(job, step, rank) for rank in range(2)]
            limit, norms = limit_of(step), []
            result = fleet.step(step, [optimizer], [[part] for part in parts], max_norm=limit)
            oracle.step([optimizer], data.summed(parts, 0.5),
                        lambda: norms.append(clip(oracle.parameters.values(), limit)))
            assert result.grad_norm == pytest.approx(norms[0], rel=LIMIT)
            expected = min(1.0, limit / (norms[0] + 1e-6)) if limit else 1.0
            assert result.clip_factor == pytest.approx(expected, rel=LIMIT)
            clipped += result.clip_factor < 1
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))
    assert 20 < clipped < data.STEPS - 20, "the limits test both sides"


@pytest.mark.parametrize("mode", MODES)
def test_each_group_has_a_norm_and_a_limit_of_its_own(cluster, job_name, mode, report):
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, layers=grouped_layers(), groups=2,
                        clip_scope="group", update_mode=mode)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            limits = [limit_of(step), limit_of(step + 3) / 8]
            gradients = data.gradients(job, step)
            norms: list[float] = []

            def by_hand() -> None:
                norms.extend(clip(group["params"], limit) for group, limit in zip(
                    oracle.optimizer.param_groups, limits))

            result = fleet.step(step, [optimizer] * 2, [[gradients]], max_norm=limits)
            oracle.step([optimizer] * 2, gradients, by_hand)
            assert result.grad_norm == pytest.approx(math.hypot(*norms), rel=LIMIT)
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))


@pytest.mark.parametrize("mode", MODES)
def test_each_layer_has_a_norm_of_its_own(cluster, job_name, mode, report):
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, clip_scope="layer", update_mode=mode)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            gradients = data.gradients(job, step)
            if step % 5 == 2:  # a layer without gradient has no norm
                gradients = {name: value for name, value in gradients.items()
                             if not name.startswith("block.")}
            limit = limit_of(step) / 2

            def by_hand() -> None:
                for spec in job.layers:
                    clip([oracle.parameters[tensor.name] for tensor in spec.tensors], limit)

            result = fleet.step(step, [optimizer], [[gradients]], max_norm=limit)
            oracle.step([optimizer], gradients, by_hand)
            norm = math.sqrt(sum(np.square(value.astype(np.float64)).sum()
                                 for value in gradients.values()))
            assert result.grad_norm == pytest.approx(norm, rel=LIMIT)
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))


def test_without_clipping_the_norm_is_reported_all_the_same(cluster, job_name):
    job = data.make_job(job_name, SGD(lr=1e-2), update_mode="deferred")
    weights = data.weights(job)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(5):
            gradients = data.gradients(job, step)
            result = fleet.step(step, [SGD(lr=1e-2)], [[gradients]])
            norm = math.sqrt(sum(np.square(value.astype(np.float64)).sum()
                                 for value in gradients.values()))
            assert result.grad_norm == pytest.approx(norm, rel=1e-12)
            assert result.clip_factor == 1


@pytest.mark.parametrize("options, limits, word", [
    (dict(clip_scope="global"), [1.0, 2.0], "max_norm"),
    (dict(clip_scope="layer"), [1.0, 2.0], "max_norm"),
    (dict(clip_scope="global"), [-1.0, -1.0], "max_norm"),
    (dict(clip_scope="global"), [math.nan, math.nan], "max_norm"),
    (dict(update_mode="deferred"), [1.0, 1.0], "max_norm"),
])
def test_limits_that_mean_nothing_are_refused(cluster, job_name, options, limits, word):
    job = data.make_job(job_name, SGD(), layers=grouped_layers(), groups=2, **options)
    weights = data.weights(job)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        with pytest.raises(ArgumentError, match=word):
            fleet.sessions[0].begin_step(0, [SGD()] * 2, max_norm=limits)


def test_workers_must_agree_on_the_limit(cluster, job_name):
    job = data.make_job(job_name, SGD(), world_size=2, clip_scope="global")
    with Fleet(cluster.endpoints, job, data.weights(job)) as fleet:
        first, second = fleet.sessions
        first.begin_step(0, max_norm=1.0)
        with pytest.raises(ArgumentError, match="max_norm"):
            second.begin_step(0, max_norm=2.0)


def test_the_number_of_limits_is_checked_before_anything_is_sent(cluster, job_name):
    job = data.make_job(job_name, SGD(), clip_scope="group")
    with Fleet(cluster.endpoints, job, data.weights(job)) as fleet:
        session: Session = fleet.sessions[0]
        with pytest.raises(ArgumentError, match="2 values for 1 groups"):
            session.begin_step(0, max_norm=[1.0, 1.0])
