"""The typed session API over numpy and DLPack buffers, against real daemons."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest
from cluster import Cluster
from conftest import LEASE_MS, LUWUD

import luwu

SHARD = 1024
SHAPES = [("a", (7, 11)), ("b", (3000,)), ("c", ())]


@pytest.fixture(scope="module")
def shm_cluster() -> Iterator[Cluster]:
    """One daemon with shared memory."""
    with Cluster(LUWUD, nodes=1, lease_ms=LEASE_MS) as running:
        yield running


def make_job(name: str, **changes: Any) -> luwu.JobSpec:
    values: dict[str, Any] = dict(
        name=name, world_size=1, layers=(luwu.layer_of("first", SHAPES), luwu.layer_of(
            "second", [("d", (64,))])),
        optimizer=luwu.AdamW(lr=0.1, weight_decay=0.2), served=luwu.DType.FLOAT32,
        gradients=luwu.DType.FLOAT32, shard_elements=SHARD,
        overflow_bytes=1 << 20)
    values.update(changes)
    return luwu.JobSpec(**values)


def weights(job: luwu.JobSpec, layer: int, seed: int = 0) -> np.ndarray:
    """Random values where tensors are, zero in the gaps."""
    values = np.zeros(job.layers[layer].elements, np.float32)
    generator = np.random.default_rng(seed + layer)
    for tensor in job.layers[layer].tensors:
        values[tensor.offset:tensor.offset + tensor.elements] = generator.normal(
            size=tensor.elements)
    return values


def open_loaded(cluster: Cluster, job: luwu.JobSpec, **options: Any) -> luwu.Session:
    session = luwu.Session(cluster.endpoints, job, 0, **options)
    for layer in range(len(job.layers)):
        session.load(layer, weights(job, layer))
    session.finish_load()
    return session


def adamw(w: np.ndarray, g: np.ndarray, values: luwu.AdamW) -> np.ndarray:
    """One first step of AdamW in float64."""
    w, g = w.astype(np.float64), g.astype(np.float64)
    beta1, beta2 = values.betas
    m, v = (1 - beta1) * g, (1 - beta2) * g * g
    w = w * (1 - values.lr * values.weight_decay)
    return w - values.lr / (1 - beta1) * m / (np.sqrt(v) / math.sqrt(1 - beta2) + values.eps)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Round to nearest even, for finite values."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def test_fetch_gives_what_was_loaded(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job) as session:
        info = session.info()
        assert (info.nodes, info.shm_nodes, info.created, info.loaded) == (2, 1, True, True)
        for layer in range(2):
            assert np.array_equal(session.fetch(layer, 0), weights(job, layer))
            assert np.array_equal(session.read(layer), weights(job, layer))
        assert np.array_equal(session.read("first", offset=64, count=5), weights(job, 0)[64:69])
        assert session.info().fetched_bytes == 4 * sum(l.elements for l in job.layers)


def test_fetch_converts_into_the_buffers_dtype(cluster: Cluster, job_name: str) -> None:
    torch = pytest.importorskip("torch")
    job = make_job(job_name)
    expected = weights(job, 0)
    with open_loaded(cluster, job) as session:
        half = np.empty(expected.size, np.float16)
        session.fetch("first", 0, half)
        assert np.array_equal(half, expected.astype(np.float16))
        bits = np.empty(expected.size, np.uint16)
        session.fetch("first", 0, bits)
        assert np.array_equal(bits, bf16_bits(expected))
        tensor = torch.empty(expected.size, dtype=torch.bfloat16)
        session.fetch("first", 0, tensor)
        assert torch.equal(tensor, torch.from_numpy(expected).bfloat16())


def test_fetch_into_parts_of_a_layer(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    expected = weights(job, 0)
    with open_loaded(cluster, job) as session:
        for offset, count in itertools.product([0, 1, 63, SHARD - 1, SHARD, SHARD + 1],
                                               [1, 64, SHARD - 1, SHARD, SHARD + 1]):
            part = np.full(count + 2, 7, np.float32)
            session.fetch(0, 0, luwu.Segment(part[1:-1], offset))
            assert np.array_equal(part[1:-1], expected[offset:offset + count])
            assert part[0] == part[-1] == 7  # nothing beside it was written
        parts = [luwu.Segment(np.empty(10, np.float32), 2000), luwu.Segment(
            np.empty(20, np.float16), 5)]
        operation = session.fetch_async(0, 0, parts)
        operation.wait()
        operation.wait()  # the result can be asked for again
        assert operation.done
        assert np.array_equal(parts[0].data, expected[2000:2010])
        assert np.array_equal(parts[1].data, expected[5:25].astype(np.float16))


def test_a_dropped_operation_keeps_its_buffer(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name, layers=(luwu.layer_of("big", [("w", (1 << 20,))]),))
    with open_loaded(cluster, job) as session:
        for _ in range(20):
            session.fetch_async(0, 0, np.empty(1 << 20, np.float32))
        assert np.array_equal(session.fetch(0, 0), weights(job, 0))


def test_views_are_read_only_and_need_no_copy(shm_cluster: Cluster, job_name: str) -> None:
    for served in luwu.DType:
        job = make_job(f"{job_name}-{int(served)}", served=served)
        with open_loaded(shm_cluster, job) as session:
            pieces = session.fetch_view("first", 0)
            whole = np.empty(job.layers[0].elements, pieces[0].array.dtype)
            session.fetch(0, 0, whole)
            assert sum(piece.array.size for piece in pieces) == whole.size
            for piece in pieces:
                assert not piece.array.flags.writeable
                assert np.array_equal(
                    piece.array, whole[piece.offset:piece.offset + piece.array.size])
            with pytest.raises(ValueError):
                pieces[0].array[0] = 1


def test_views_are_refused_over_tcp(cluster: Cluster, job_name: str) -> None:
    with open_loaded(cluster, make_job(job_name)) as session:
        with pytest.raises(luwu.UnsupportedError):
            session.fetch_view(0, 0)


@pytest.mark.parametrize("how", ["push", "push_async", "in place", "segments"])
def test_a_step_updates_as_adamw(cluster: Cluster, job_name: str, how: str) -> None:
    job = make_job(job_name)
    values = job.optimizer
    gradient = weights(job, 0, seed=5)
    with open_loaded(cluster, job) as session:
        session.begin_step(0)
        if how == "push":
            session.push("first", gradient)
        elif how == "push_async":
            session.push_async("first", gradient).wait()
        elif how == "in place":
            def fill(array: np.ndarray, offset: int) -> None:
                array[:] = gradient[offset:offset + array.size]
            session.push_in_place("first", fill)
        else:
            session.push("first", [luwu.Segment(gradient[t.offset:t.offset + t.elements].copy(),
                                                t.offset) for t in job.layers[0].tensors])
        session.close_layer("second")
        result = session.commit(0)
        assert result.applied and result.culprit == ""
        assert session.current_step == 1
        expected = adamw(weights(job, 0), gradient, values)
        updated = session.fetch(0, 1)
        assert np.allclose(updated, expected, rtol=1e-6, atol=1e-7)
        assert np.array_equal(session.read(0), updated)
        assert np.allclose(session.read(0, "moment1"), 0.1 * gradient, rtol=1e-6)
        assert np.allclose(session.read(0, "moment2"), 1e-3 * gradient ** 2, rtol=1e-5)
        assert np.array_equal(session.fetch(1, 1), weights(job, 1))  # absent: not even decayed
        assert session.info().pushed_bytes == gradient.nbytes


def test_several_pushes_are_summed(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name, optimizer=luwu.SGD(lr=1.0))
    parts = [weights(job, 0, seed=seed) for seed in (1, 2, 3)]
    with open_loaded(cluster, job) as session:
        session.begin_step(0)
        for part in parts[:-1]:
            session.push(0, part, close=False)
        session.push(0, parts[-1])
        session.push(1, np.zeros(64, np.float32), close=False)
        session.close_layer(1)
        assert session.commit(0).applied
        total = (parts[0] + parts[1]) + parts[2]
        assert np.array_equal(session.fetch(0, 1), weights(job, 0) - total)


def test_a_non_finite_gradient_skips_the_step_and_is_named(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job) as session:
        for step, bad in enumerate([np.nan, np.inf]):
            gradient = weights(job, 0, seed=5)
            gradient[job.layers[0].tensors[1].offset + 2500] = bad
            session.begin_step(step)
            session.push(0, gradient)
            session.push(1, weights(job, 1, seed=5))
            result = session.commit(step)
            assert result.outcome == "skipped" and not result.applied
            assert "first" in result.culprit and "'b'" in result.culprit.replace('"', "'")
            for layer in range(2):
                assert np.array_equal(session.fetch(layer, step + 1), weights(job, layer))


def test_a_job_may_fail_on_a_non_finite_gradient(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name, on_non_finite="fail")
    with open_loaded(cluster, job) as session:
        session.begin_step(0)
        session.push(0, np.full(job.layers[0].elements, np.nan, np.float32))
        session.close_layer(1)
        assert session.commit(0).outcome == "failed"
        with pytest.raises(luwu.JobFailedError):
            session.begin_step(1)


def test_status_names_nodes_job_and_worker(cluster: Cluster, job_name: str) -> None:
    with open_loaded(cluster, make_job(job_name)) as session:
        status = session.status()
        assert [node["name"] for node in status["nodes"]] == ["node0", "node1"]
        for node, transport in zip(status["nodes"], ["shm", "tcp"]):
            job, = [each for each in node["status"]["jobs"] if each["name"] == job_name]
            assert job["workers"][0]["pid"] == os.getpid()
            assert job["workers"][0]["transport"] == transport
        assert json.dumps(status)


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_the_transport_can_be_forced(cluster: Cluster, job_name: str, transport: str) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job, transport=transport) as session:
        assert session.info().shm_nodes == (1 if transport == "auto" else 0)
        assert np.array_equal(session.fetch(0, 0), weights(job, 0))


def test_a_forced_shm_names_the_node_that_has_none(cluster: Cluster, job_name: str) -> None:
    with pytest.raises(luwu.LuwuError, match="node1"):
        luwu.Session(cluster.endpoints, make_job(job_name), 0, transport="shm")


def test_a_closed_session_says_so(cluster: Cluster, job_name: str) -> None:
    session = open_loaded(cluster, make_job(job_name))
    session.close()
    session.close()
    assert session.closed
    with pytest.raises(luwu.StateError, match="closed"):
        session.fetch(0, 0)


def test_a_forked_child_is_refused(cluster: Cluster, job_name: str) -> None:
    with open_loaded(cluster, make_job(job_name)) as session:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                session.fetch(0, 0)
                answer = "fetched"
            except luwu.StateError:
                answer = "StateError"
            except BaseException as error:
                answer = repr(error)
            os.write(write_end, answer.encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            assert pipe.read() == "StateError"
        os.waitpid(child, 0)
        assert np.array_equal(session.fetch(0, 0), weights(make_job(job_name), 0))


Make = Callable[[luwu.JobSpec, luwu.Session], Any]


def _strided(job: luwu.JobSpec) -> np.ndarray:
    return np.zeros((64, 2), np.float32)[:, 0]


def _read_only() -> np.ndarray:
    array = np.zeros(64, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("error, match, call", [
    (luwu.NotFoundError, "'third'", lambda job, s: s.fetch("third", 0)),
    (luwu.NotFoundError, "layer 2", lambda job, s: s.fetch(2, 0)),
    (luwu.NotFoundError, "layer -1", lambda job, s: s.fetch(-1, 0)),
    (luwu.ArgumentError, ".", lambda job, s: s.fetch(1, 0, np.zeros(65, np.float32))),
    (luwu.ArgumentError, ".", lambda job, s: s.fetch(
        1, 0, luwu.Segment(np.zeros(1, np.float32), 64))),
    (luwu.ArgumentError, ".", lambda job, s: s.fetch(
        1, 0, [luwu.Segment(np.zeros(9, np.float32), offset) for offset in (0, 8)])),
    (luwu.UnsupportedError, "float64", lambda job, s: s.fetch(1, 0, np.zeros(64))),
    (luwu.ArgumentError, "contiguous", lambda job, s: s.fetch(1, 0, _strided(job))),
    (luwu.ArgumentError, "read-only", lambda job, s: s.fetch(1, 0, _read_only())),
    (luwu.ArgumentError, "list|str|buffer", lambda job, s: s.fetch(1, 0, "buffer")),
    (luwu.ArgumentError, "float32", lambda job, s: s.load(1, np.zeros(64))),
    (luwu.ArgumentError, "quantity", lambda job, s: s.read(1, "gradient")),
    (luwu.DeadlineError, ".", lambda job, s: s.fetch(1, 1, timeout_s=0.05)),
    (luwu.StateError, ".", lambda job, s: s.push(1, np.zeros(64, np.float32))),
    (luwu.StateError, ".", lambda job, s: s.close_layer(1)),
    (luwu.StateError, ".", lambda job, s: s.commit(0)),
    (luwu.StateError, ".", lambda job, s: s.begin_step(5)),
    (luwu.ArgumentError, ".", lambda job, s: s.begin_step(0, [])),
    (luwu.ArgumentError, "lr", lambda job, s: s.begin_step(0, [luwu.AdamW(lr=-1)])),
    (luwu.ArgumentError, "lr", lambda job, s: s.begin_step(0, [luwu.AdamW(lr=math.nan)])),
])
def test_wrong_calls_have_clear_errors(cluster: Cluster, job_name: str, error: type[Exception],
                                       match: str, call: Make) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job) as session:
        with pytest.raises(error, match=match) as caught:
            call(job, session)
        assert isinstance(caught.value, luwu.LuwuError) and caught.value.code < 0
        assert str(caught.value)
        # The session is as good as before.
        session.begin_step(0)
        session.close_layer(0)
        session.close_layer(1)
        assert session.commit(0).applied


def test_wrong_calls_inside_a_step(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    zeros = np.zeros(64, np.float32)
    with open_loaded(cluster, job) as session:
        session.begin_step(0)
        with pytest.raises(luwu.StateError, match="first|second"):
            session.commit(0)  # no layer is closed
        with pytest.raises(luwu.ArgumentError):
            session.push(1, np.zeros(63, np.float32))  # does not cover its tensor
        session.push(1, zeros)
        with pytest.raises(luwu.LayerClosedError, match="second"):
            session.push(1, zeros)
        session.close_layer(0)
        with pytest.raises(luwu.StateError):
            session.load(0, weights(job, 0))
        assert session.commit(0).applied
        assert session.commit(0).applied  # idempotent
        for step in (1, 2):
            session.begin_step(step)
            session.close_layer(0)
            session.close_layer(1)
            session.commit(step)
        with pytest.raises(luwu.StaleVersionError):
            session.fetch(0, 0)


@pytest.mark.parametrize("error, match, change", [
    (luwu.ArgumentError, "name", dict(name="")),
    (luwu.ArgumentError, "name", dict(name="a job")),
    (luwu.ArgumentError, "world", dict(world_size=0)),
    (luwu.ArgumentError, "world_size is -1", dict(world_size=-1)),
    (luwu.ArgumentError, "layer", dict(layers=())),
    (luwu.ArgumentError, "'a'", dict(layers=(luwu.layer_of("l", [("a", (2,)), ("a", (2,))]),))),
    (luwu.ArgumentError, "'a'", dict(layers=(luwu.LayerSpec(
        "l", 64, (luwu.TensorSpec("a", (0,), 0),)),))),
    (luwu.ArgumentError, "'a'", dict(layers=(luwu.LayerSpec(
        "l", 64, (luwu.TensorSpec("a", (1 << 40, 1 << 40), 0),)),))),
    (luwu.ArgumentError, "'a'", dict(layers=(luwu.LayerSpec(
        "l", 64, (luwu.TensorSpec("a", (65,), 0),)),))),
    (luwu.ArgumentError, "'b'", dict(layers=(luwu.LayerSpec("l", 64, (
        luwu.TensorSpec("a", (10,), 0), luwu.TensorSpec("b", (10,), 5))),))),
    (luwu.ArgumentError, "group", dict(layers=(luwu.LayerSpec(
        "l", 64, (luwu.TensorSpec("a", (4,), 0, group=3),)),))),
    (luwu.ArgumentError, "shard", dict(shard_elements=100)),
    (luwu.ResourceExhaustedError, "bytes|MiB|GiB", dict(layers=(luwu.layer_of(
        "l", [("a", (1 << 30,))]),))),
])
def test_wrong_jobs_are_refused(cluster: Cluster, job_name: str, error: type[Exception], match: str,
                                change: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        luwu.Session(cluster.endpoints, make_job(**{"name": job_name, **change}), 0)


def test_joining_with_another_spec_or_rank_is_refused(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job):
        other = make_job(job_name, layers=(job.layers[0], luwu.layer_of("second", [("d", (65,))])))
        with pytest.raises(luwu.SchemaMismatchError, match="second"):
            luwu.Session(cluster.endpoints, other, 0)
        with pytest.raises(luwu.RankTakenError, match="0"):
            luwu.Session(cluster.endpoints, job, 0)
        with pytest.raises(luwu.LuwuError, match="rank"):
            luwu.Session(cluster.endpoints, job, 1)


def test_no_daemon_at_the_endpoint_is_named(job_name: str) -> None:
    with pytest.raises(luwu.LuwuError, match="127.0.0.1:1"):
        luwu.Session("127.0.0.1:1", make_job(job_name), 0, timeout_s=2)
    with pytest.raises(luwu.LuwuError, match="nonsense"):
        luwu.Session("nonsense", make_job(job_name), 0, timeout_s=2)


def test_a_higher_restart_count_fences_the_former_session(cluster: Cluster, job_name: str) -> None:
    job = make_job(job_name)
    with open_loaded(cluster, job) as former:
        former.begin_step(0)
        with luwu.Session(cluster.endpoints, job, 0, restart_count=1) as successor:
            with pytest.raises(luwu.FencedError):
                former.commit(0, timeout_s=5)
            successor.begin_step(successor.current_step)
            for layer in range(2):
                successor.close_layer(layer)
            assert successor.commit(0).applied


def memory_used(session: luwu.Session) -> list[int]:
    return [int(node["status"]["memory_used_bytes"]) for node in session.status()["nodes"]]


def test_a_deleted_job_is_gone_from_every_node_and_its_memory_is_free(
        start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(nodes=2, weights=[1, 1])
    watcher_job = make_job("watcher")
    with luwu.Session(cluster.endpoints, watcher_job, 0) as watcher:
        before = memory_used(watcher)
        job = make_job("doomed")
        with open_loaded(cluster, job) as session:
            during = memory_used(watcher)
            assert all(now > then for now, then in zip(during, before))
            with pytest.raises(luwu.StateError, match="node0.*doomed.*1 open session"):
                luwu.delete_job(cluster.endpoints, "doomed")
            session.begin_step(0)  # it was left as it is
            session.close_layer(0)
            session.close_layer(1)
            assert session.commit(0).applied
        luwu.delete_job(cluster.endpoints, "doomed")
        assert memory_used(watcher) == before
        with pytest.raises(luwu.NotFoundError, match="doomed"):
            luwu.delete_job(cluster.endpoints, "doomed")
        with open_loaded(cluster, job) as session:  # a new one of the same name
            assert session.info().created and session.current_step == 0


def test_a_job_can_be_deleted_under_its_workers_by_force(
        start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(nodes=2)
    with open_loaded(cluster, make_job("doomed")) as session:
        session.begin_step(0)
        luwu.delete_job(cluster.nodes[1].control, "doomed", force=True)
        with pytest.raises(luwu.SessionLostError):
            session.close_layer(0)
            session.close_layer(1)
            session.commit(0, timeout_s=20)


def test_deleting_names_a_node_that_does_not_answer(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(nodes=2)
    open_loaded(cluster, make_job("doomed")).close()
    cluster.stop(1)
    with pytest.raises(luwu.LuwuError, match="node1"):
        luwu.delete_job(cluster.endpoints, "doomed", timeout_s=5)
    cluster.start(1)
    with pytest.raises(luwu.NotFoundError):
        luwu.delete_job([node.control for node in cluster.nodes], "doomed")


def test_interrupting_a_commit_that_waits_is_noticed_soon(cluster: Cluster, job_name: str) -> None:
    code = f"""
import _thread, sys, threading, numpy as np, luwu
job = luwu.JobSpec({job_name!r}, 2, (luwu.layer_of("first", [("w", (8,))]),))
with luwu.Session({cluster.endpoints!r}, job, 0) as session, \\
        luwu.Session({cluster.endpoints!r}, job, 1) as other:
    session.load(0, np.zeros(session.job.layers[0].elements, np.float32))
    session.finish_load()
    for each in (session, other):
        each.begin_step(0)
    session.close_layer(0)
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    try:
        session.commit(0, timeout_s=300)  # the other worker closes nothing
    except KeyboardInterrupt:
        print("interrupted")
    other.close_layer(0)
    assert session.commit(0, timeout_s=300).applied
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(Path(luwu.__file__).parents[1])})
    assert done.stdout.strip() == "interrupted", done.stderr
