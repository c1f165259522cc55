"""The dynamic loss scale against the rules of ``torch.cuda.amp.GradScaler``, written down here (the
original works on CUDA tensors only)."""

from __future__ import annotations

from typing import Mapping

import data
import numpy as np
import pytest
from fleet import Fleet
from luwu import SGD, Adam, AdamW, DType, LossScaling, Session
from oracle import Oracle, assert_equal

OPTIMIZERS = {"adamw": AdamW(lr=1e-3), "adam_amsgrad": Adam(lr=1e-3, amsgrad=True),
              "sgd_momentum": SGD(lr=1e-2, momentum=0.9, weight_decay=1e-2)}
MODES = ["deferred", "speculative"]


class Scaler:
    """scale, unscale, skip and update of GradScaler."""

    def __init__(self, options: LossScaling) -> None:
        self.options = options
        self.scale = options.init_scale
        self.applied_in_a_row = 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale *= self.options.backoff_factor
            self.applied_in_a_row = 0
            return
        self.applied_in_a_row += 1
        if self.applied_in_a_row == self.options.growth_interval:
            self.scale *= self.options.growth_factor
            self.applied_in_a_row = 0


def scaled(gradients: Mapping[str, np.ndarray], scale: float) -> dict[str, np.ndarray]:
    return {name: value * np.float32(scale) for name, value in gradients.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scale_skip_backoff_and_growth(cluster, job_name, name, mode, report):
    """Powers of two scale exactly, so that the weights must have torch's bits."""
    optimizer = OPTIMIZERS[name]
    options = LossScaling(init_scale=2.0**10, growth_interval=5)
    job = data.make_job(job_name, optimizer, world_size=2, loss_scaling=options, update_mode=mode)
    weights = data.weights(job)
    oracle, scaler = Oracle(job, weights), Scaler(options)
    skipped = 0
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            assert [session.loss_scale for session in fleet.sessions] == [scaler.scale] * 2
            parts = [data.gradients(job, step, rank) for rank in range(2)]
            pushed = [scaled(part, scaler.scale) for part in parts]
            bad = step % 11 in (3, 4) or step == 0
            if bad:  # anywhere, in the gradients of one worker
                name_of = list(pushed[0])[step % len(pushed[0])]
                pushed[step % 2][name_of].reshape(-1)[-1] = (np.inf, -np.inf, np.nan)[step % 3]
            before = fleet.masters() if bad else None
            result = fleet.step(step, [optimizer], [[part] for part in pushed],
                                outcome="skipped" if bad else "applied")
            scaler.update(not bad)
            assert result.loss_scale == scaler.scale, step
            if before is not None:
                skipped += 1
                assert name_of in result.culprit and np.isnan(result.grad_norm)
                assert_bits(fleet.masters(), before)
                assert_bits(fleet.served(step + 1), before)
            else:
                oracle.step([optimizer], data.summed(parts, 0.5))
        report(assert_equal(fleet.masters(), oracle.masters()))
        assert_equal(fleet.served(data.STEPS), fleet.masters())
    assert skipped > 20 and scaler.scale != options.init_scale


def assert_bits(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert np.array_equal(value.view(np.uint32), theirs[name].view(np.uint32)), name


@pytest.mark.parametrize("mode", MODES)
def test_clipping_sees_unscaled_gradients(cluster, job_name, mode, report):
    optimizer = SGD(lr=1e-2, momentum=0.9)
    job = data.make_job(job_name, optimizer, clip_scope="global", update_mode=mode,
                        loss_scaling=LossScaling(init_scale=2.0**16, growth_interval=7))
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(60):
            gradients = data.gradients(job, step)
            norm = np.sqrt(sum(np.square(g.astype(np.float64)).sum() for g in gradients.values()))
            pushed = scaled(gradients, fleet.sessions[0].loss_scale)
            result = fleet.step(step, [optimizer], [[pushed]], max_norm=0.5)
            assert result.grad_norm == pytest.approx(norm, rel=1e-12)
            factor = min(1.0, 0.5 / (norm + 1e-6))
            oracle.step([optimizer], {name: (factor * value.astype(np.float64)).astype(np.float32)
                                      for name, value in gradients.items()})
        report(assert_equal(fleet.masters(), oracle.masters(), bits=False))


def test_float16_gradients_overflow_until_the_scale_fits(cluster, job_name):
    """What loss scaling is for: tiny gradients survive, the scale backs off if others overflow."""
    optimizer = SGD(lr=1.0)
    job = data.make_job(job_name, optimizer, gradients=DType.FLOAT16,
                        loss_scaling=LossScaling(init_scale=2.0**30, growth_interval=0))
    weights = {name: np.zeros_like(value) for name, value in data.weights(job).items()}
    tiny = 2.0**-27  # a zero in float16
    with Fleet(cluster.endpoints, job, weights) as fleet:
        step = outcome = 0
        while outcome != "applied":
            scale = fleet.sessions[0].loss_scale
            gradients = {name: np.full(value.shape, tiny * scale, np.float32)
                         for name, value in weights.items()}
            # One gradient of 1 among the tiny ones.
            gradients["head.bias"][:] = scale
            with np.errstate(over="ignore"):
                half = {name: value.astype(np.float16) for name, value in gradients.items()}
            outcome = "applied" if scale <= 2.0**15 else "skipped"
            fleet.step(step, [optimizer], [[half]], outcome=outcome)
            step += 1
        assert step == 16
        masters = fleet.masters()
        assert np.all(masters["embedding.weight"] == -tiny) and np.all(masters["head.bias"] == -1)


def test_a_worker_that_joins_later_learns_the_scale(cluster, job_name):
    options = LossScaling(init_scale=64.0, growth_interval=2)
    job = data.make_job(job_name, SGD(), loss_scaling=options)
    with Fleet(cluster.endpoints, job, data.weights(job)) as fleet:
        for step in range(3):
            fleet.step(step, [SGD()], [[data.gradients(job, step)]])
        with Session(cluster.endpoints, job, 0, restart_count=1) as again:
            again.begin_step(3)
            assert again.loss_scale == 128.0


def test_without_loss_scaling_the_scale_is_one(cluster, job_name):
    job = data.make_job(job_name, SGD())
    with Fleet(cluster.endpoints, job, data.weights(job)) as fleet:
        assert fleet.sessions[0].loss_scale == 1
        result = fleet.step(0, [SGD()], [[data.gradients(job, 0)]])
        assert result.loss_scale == fleet.sessions[0].loss_scale == 1
