"""Parameter groups, tied and frozen tensors, and layers without gradient in some steps."""

from __future__ import annotations

import dataclasses

import data
import numpy as np
import pytest
import torch
from fleet import Fleet, layer
from luwu import SGD, Adagrad, Adam, AdamW, Lion
from oracle import Oracle, assert_equal

OPTIMIZERS = {
    "adamw": AdamW(lr=1e-3), "adam_amsgrad": Adam(lr=1e-3, amsgrad=True), "lion": Lion(lr=3e-4),
    "adagrad": Adagrad(lr=1e-2, lr_decay=1e-3), "sgd_momentum": SGD(lr=1e-2, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_with_and_without_decay(cluster, job_name, name, report):
    """Norms and biases without decay at a rate of their own, inside the same layers and shards."""
    optimizer = OPTIMIZERS[name]
    layers = [layer("a", ("norm", (70,), 1), ("weight", (45, 50)), ("bias", (45,), 1)),
              layer("b", ("weight", (33, 70)), ("bias", (33,), 1), align=1)]
    job = data.make_job(job_name, optimizer, layers=tuple(layers), groups=2)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            lr = data.scheduled(optimizer.lr, step)
            groups = [dataclasses.replace(optimizer, lr=lr, weight_decay=0.1),
                      dataclasses.replace(optimizer, lr=2 * lr, weight_decay=0.0)]
            gradients = data.gradients(job, step)
            fleet.step(step, groups, [[gradients]])
            oracle.step(groups, gradients)
        report(assert_equal(fleet.masters(), oracle.masters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tied_embedding(cluster, job_name, name, report):
    """One storage, used by the head and by the embedding: two pushes in a step, head first, against
    autograd summing both uses."""
    optimizer = OPTIMIZERS[name]
    job = data.make_job(job_name, optimizer, layers=(layer("tied", ("weight", (120, 33))),),
                        reduction="sum")
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    tied = oracle.parameters["tied.weight"]
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            head, embedding = (data.gradients(job, step, micro=use) for use in range(2))
            fleet.step(step, [optimizer], [[head, embedding]])
            tied.grad = None
            uses = [torch.from_numpy(use["tied.weight"]) for use in (embedding, head)]
            sum((tied * use).sum() for use in uses).backward()
            oracle.optimizer.step()
        report(assert_equal(fleet.masters(), oracle.masters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_layer_and_frozen_tensor_keep_their_bits(cluster, job_name, name, report):
    optimizer = OPTIMIZERS[name]
    layers = [layer("frozen", ("weight", (50, 50), 0, False)),
              layer("mixed", ("table", (37, 40), 0, False), ("weight", (40, 41)),
                    ("scale", (3,), 0, False), ("bias", (41,)), align=1),
              layer("free", ("weight", (30, 40)))]
    job = data.make_job(job_name, optimizer, layers=tuple(layers))
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            gradients = data.gradients(job, step)
            fleet.step(step, [optimizer], [[gradients]])
            oracle.step([optimizer], gradients)
        masters, served = fleet.masters(), fleet.served(data.STEPS)
        report(assert_equal(masters, oracle.masters()))
        for frozen in ("frozen.weight", "mixed.table", "mixed.scale"):
            for values in (masters, served):
                assert np.array_equal(values[frozen].view(np.uint32),
                                      weights[frozen].view(np.uint32)), frozen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_layer_without_gradient_in_some_steps(cluster, job_name, name, report):
    """torch leaves a parameter whose grad is None alone, decay and step count included."""
    optimizer = dataclasses.replace(OPTIMIZERS[name], weight_decay=0.05)
    job = data.make_job(job_name, optimizer)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            gradients = data.gradients(job, step)
            absent = {0: ["block"], 1: ["block", "embedding"], 2: [], 3: ["head"]}[step % 4]
            present = {key: value for key, value in gradients.items()
                       if key.split(".")[0] not in absent}
            fleet.step(step, [optimizer], [[present]])
            oracle.step([optimizer], present)
            if step % 25 == 0:
                assert_equal(fleet.served(step + 1), oracle.masters())
        report(assert_equal(fleet.masters(), oracle.masters()))


@pytest.mark.parametrize("mode", ["immediate", "deferred", "speculative"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_everything_at_once(cluster, job_name, name, mode, report):
    """Groups, a schedule, accumulation, absent layers and skipped steps, in one run."""
    optimizer = OPTIMIZERS[name]
    layers = (layer("a", ("norm", (70,), 1), ("weight", (45, 50)), ("bias", (45,), 1), align=1),
              layer("b", ("weight", (33, 70)), ("bias", (33,), 1)), layer("c", ("w", (17, 9))))
    job = data.make_job(job_name, optimizer, layers=layers, groups=2, reduction="sum",
                        update_mode=mode)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(data.STEPS):
            lr = data.scheduled(optimizer.lr, step)
            groups = [dataclasses.replace(optimizer, lr=lr, weight_decay=0.1),
                      dataclasses.replace(optimizer, lr=2 * lr, weight_decay=0.0)]
            parts = [data.gradients(job, step, micro=micro) for micro in range(1 + step % 3)]
            if step % 5 == 3:
                parts = [{key: value for key, value in part.items() if key[0] != "b"}
                         for part in parts]
            bad = step % 11 == 6
            if bad:
                parts[-1]["a.bias"][step % 45] = np.inf
            fleet.step(step, groups, [parts], outcome="skipped" if bad else "applied")
            if not bad:
                total = parts[0]
                for part in parts[1:]:
                    total = {key: total[key] + value for key, value in part.items()}
                oracle.step(groups, total)
        report(assert_equal(fleet.masters(), oracle.masters()))


def test_layer_that_only_one_of_two_workers_pushes(cluster, job_name):
    """The mean is over all workers: the silent one counts as zero."""
    optimizer = AdamW(lr=1e-3)
    job = data.make_job(job_name, optimizer, world_size=2)
    weights = data.weights(job)
    oracle = Oracle(job, weights)
    with Fleet(cluster.endpoints, job, weights) as fleet:
        for step in range(40):
            both = [data.gradients(job, step, rank) for rank in range(2)]
            silent = step % 2
            pushed = [dict(part) for part in both]
            for key in list(pushed[silent]):
                if key.startswith("block."):
                    del pushed[silent][key]
            fleet.step(step, [optimizer], [[part] for part in pushed])
            for key in both[silent]:
                if key.startswith("block."):
                    both[silent][key] = np.zeros_like(both[silent][key])
            oracle.step([optimizer], data.summed(both, 0.5))
        assert_equal(fleet.masters(), oracle.masters())
