"""Several trainer processes: averaging, dead and restarted workers, dead daemons."""

from __future__ import annotations

import re
import time
from typing import Any, Callable

import pytest
import torch
from cluster import Cluster
from models import batch, loss_of, make_net
from oracle import assert_close
from workers import Worker, finish, weights_of

LEASE_MS = 2000


def two_workers(cluster: Cluster, job: str, **options: Any) -> list[Worker]:
    return [Worker(endpoints=cluster.endpoints, job=job, rank=rank, world_size=2, **options)
            for rank in range(2)]


def as_tensors(weights: dict[str, list[float]]) -> dict[str, torch.Tensor]:
    shapes = {name: p.shape for name, p in make_net().named_parameters()}
    return {name: torch.tensor(values).view(shapes[name]) for name, values in weights.items()}


def test_two_workers_equal_torch_on_the_averaged_gradients(cluster: Cluster, job_name: str) -> None:
    first, second = two_workers(cluster, job_name, steps=30)
    with first, second:
        finish(first, second)
    reference = make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(30):
        sums = []
        losses = []
        for rank in range(2):
            theirs.zero_grad(set_to_none=True)
            loss = loss_of(reference, batch(step, rank))
            loss.backward()
            losses.append(loss.item())
            sums.append([p.grad for p in reference.parameters()])
        for parameter, a, b in zip(reference.parameters(), *sums):
            parameter.grad = (a + b) * 0.5
        theirs.step()
        assert [first.losses()[step], second.losses()[step]] == pytest.approx(losses, rel=1e-6)
    assert_close(as_tensors(weights_of(first)),
                 {name: p.detach() for name, p in reference.named_parameters()})


@pytest.mark.parametrize("victim, mode, clip", [
    (0, "immediate", None), (1, "immediate", None), (0, "deferred", 0.2), (1, "deferred", 0.2),
    (1, "deferred", None), (1, "speculative", 0.2)])
def test_a_worker_killed_in_mid_step_comes_back_with_the_same_bits(
        cluster: Cluster, job_name: str, victim: int, mode: str, clip: float | None) -> None:
    how: dict[str, Any] = dict(steps=8, update_mode=mode, clip_grad_norm=clip)
    calm = two_workers(cluster, f"{job_name}-calm", **how)
    with calm[0], calm[1]:
        finish(*calm)
    workers = [Worker(endpoints=cluster.endpoints, job=job_name, rank=rank, world_size=2,
                      hold_at=3 if rank == victim else -1, **how) for rank in range(2)]
    with workers[0], workers[1]:
        workers[victim].await_event("held")
        workers[victim].kill()
        with Worker(endpoints=cluster.endpoints, job=job_name, rank=victim, world_size=2,
                    restart_count=1, **how) as again:
            assert again.await_event("start")["step"] == 3
            other = workers[1 - victim]
            finish(again, other)
            final = weights_of(again if victim == 0 else other)
    assert final == weights_of(calm[0])
    assert again.losses() == calm[victim].losses()[3:]


def test_a_killed_worker_is_named_to_the_others_within_the_lease(
        start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(nodes=2, shm=[True, False], heartbeat_ms=250, lease_ms=LEASE_MS)
    first = Worker(endpoints=cluster.endpoints, job="job", rank=0, world_size=2, steps=5,
                   worker_timeout_s=0.1)
    second = Worker(endpoints=cluster.endpoints, job="job", rank=1, world_size=2, steps=5,
                    hold_at=2)
    with first, second:
        second.await_event("held")
        second.kill()
        killed = time.monotonic()
        error = next(event for event in first._lines() if event["event"] == "error")
        assert time.monotonic() - killed < LEASE_MS / 1000 + 1
        assert error["kind"] == "WorkerLostError"
        assert re.search(r"rank 1\b", error["text"]) and str(second.pid) in error["text"]


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_daemon_is_named_to_every_worker(
        start_cluster: Callable[..., Cluster], node: int) -> None:
    cluster = start_cluster(nodes=2, shm=[True, False])
    workers = [Worker(endpoints=cluster.endpoints, job="job", rank=rank, world_size=2, steps=50,
                      pause_before=2, worker_timeout_s=20) for rank in range(2)]
    with workers[0], workers[1]:
        for worker in workers:
            worker.await_event("paused")
        cluster.kill(node)
        for worker in workers:
            worker.go_on()
        for worker in workers:
            error = next(event for event in worker._lines() if event["event"] == "error")
            assert error["kind"] == "NodeLostError", error
            assert f"node{node}" in error["text"]
            assert worker.process.wait(30) == 3
