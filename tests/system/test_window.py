"""Jobs whose served copies do not fit into the memory of their node, on real daemons and disks."""

import concurrent.futures
import contextlib
import json
import subprocess
import zlib

import luwu
import numpy as np
import pytest
from programs import LUWUCTL

LAYERS = 8
ELEMENTS = 1 << 20  # of a layer
SHARD = 1 << 17
STEPS = 6
MIB = 1 << 20
COPIES = LAYERS * ELEMENTS * 2 * 2  # two versions in bf16
# Inboxes of 16 slots, 3 + 2 staging buffers, overflow and tables; then a quarter of the copies.
MEMORY = (2 * 16 * (2 * SHARD + 4096) + 5 * 12 * SHARD + 3 * MIB) + COPIES // 4


def job_of(name: str, **options) -> luwu.JobSpec:
    layers = tuple(
        luwu.LayerSpec(f"layer{i}", ELEMENTS, (luwu.TensorSpec(f"w{i}", (ELEMENTS,), 0),))
        for i in range(LAYERS)
    )
    return luwu.JobSpec(
        name, 2, layers, optimizer=luwu.AdamW(lr=1e-3), shard_elements=SHARD,
        overflow_bytes=MIB, keep_undo_state=True, **options,
    )  # fmt: skip


def load(session: luwu.Session) -> None:
    random = np.random.default_rng(7)
    for layer in range(LAYERS):
        session.load(layer, random.standard_normal(ELEMENTS, dtype=np.float32))
    session.finish_load()


def gradient_of(step: int, layer: int, rank: int) -> np.ndarray:
    random = np.random.default_rng([step, layer, rank])
    return (random.standard_normal(ELEMENTS, dtype=np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )


def train(session: luwu.Session, rank: int, first: int, steps: int):
    """Fetches every layer forwards and backwards; returns checksums of all that was fetched."""
    seen = []
    for step in range(first, first + steps):
        session.begin_step(step)
        for layer in range(LAYERS):
            seen.append(zlib.crc32(session.fetch(layer, step).tobytes()))
        for layer in reversed(range(LAYERS)):
            seen.append(zlib.crc32(session.fetch(layer, step).tobytes()))
            session.push(layer, gradient_of(step, layer, rank))
        assert session.commit(step).applied
    return seen


def run(endpoints: str, job: luwu.JobSpec, transports, first: int = 0, steps: int = STEPS):
    """Two workers side by side: what they fetched, and state and last weights in the end."""
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(luwu.Session(endpoints, job, rank, transport=transport))
            for rank, transport in enumerate(transports)
        ]
        if first == 0:
            load(sessions[0])
        for session in sessions:
            session.wait_loaded()
            assert session.current_step == first
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            workers = [
                pool.submit(train, session, rank, first, steps)
                for rank, session in enumerate(sessions)
            ]
            seen = [worker.result() for worker in workers]
        assert seen[0] == seen[1]
        arrays = [
            sessions[0].read(layer, quantity)
            for layer in (0, LAYERS - 1)
            for quantity in ("master", "moment1", "moment2")
        ]
        arrays += [sessions[1].fetch(layer, first + steps) for layer in range(LAYERS)]
        return seen[0], arrays


def check_equal(one, other) -> None:
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1]):
        np.testing.assert_array_equal(a, b)


def plan_of(endpoints: str, job: str) -> dict:
    command = [str(LUWUCTL), "-e", endpoints, "plan", job, "-o", "json"]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    return json.loads(text)["nodes"][0]


@pytest.mark.parametrize("transports", [("shm", "tcp"), ("tcp", "tcp")])
@pytest.mark.parametrize("engine", ["extents", "rocksdb_values"])
def test_a_quarter_of_the_copies_in_memory_trains_with_equal_bits(
    start_cluster, engine, transports
):
    roomy = start_cluster(nodes=1, memory="512MiB")
    expected = run(roomy.endpoints, job_of("roomy"), transports)
    roomy.stop(0)
    tight = start_cluster(
        nodes=1, memory="512MiB", storage=True, storage_settings=f'engine = "{engine}"'
    )
    job = job_of("tight", memory_bytes=MEMORY)
    check_equal(expected, run(tight.endpoints, job, transports))
    plan = plan_of(tight.endpoints, "tight")
    assert plan["window_copies"] == 2 * LAYERS * ELEMENTS // SHARD
    assert 8 <= plan["window_slots"] < plan["window_copies"] // 2
    assert plan["window_wants"] > 0
    assert plan["window_written_bytes"] >= (STEPS + 1) * COPIES // 2
    assert 0 < plan["window_read_bytes"] < 2 * 2 * (STEPS + 1) * COPIES // 2
    assert plan["resident_bytes"] == 0


def test_after_a_kill_the_job_comes_back_with_its_window_and_equal_bits(start_cluster):
    transports = ("shm", "tcp")
    options = {"durable_every": 1, "durability": "synced"}
    roomy = start_cluster(nodes=1, memory="512MiB")
    expected = run(roomy.endpoints, job_of("roomy"), transports)
    roomy.stop(0)
    tight = start_cluster(nodes=1, memory="512MiB", storage=True)
    job = job_of("tight", memory_bytes=MEMORY, **options)
    before, _ = run(tight.endpoints, job, transports, steps=STEPS // 2)
    tight.kill(0)
    tight.start(0)
    after, arrays = run(tight.endpoints, job, transports, STEPS // 2, STEPS - STEPS // 2)
    check_equal(expected, (before + after, arrays))


def test_a_view_of_copies_that_come_and_go_is_refused(start_cluster):
    cluster = start_cluster(nodes=1, memory="512MiB", storage=True)
    with luwu.Session(cluster.endpoints, job_of("tight", memory_bytes=MEMORY), 0) as session:
        load(session)
        with pytest.raises(luwu.UnsupportedError, match="stay in memory.*use luwu_fetch"):
            session.fetch_view(0, 0)


def test_too_little_even_for_a_window_is_refused_with_the_bytes(start_cluster):
    cluster = start_cluster(nodes=1, memory="512MiB", storage=True)
    with pytest.raises(luwu.ResourceExhaustedError, match="most of its weights on disk.*raise"):
        luwu.Session(cluster.endpoints, job_of("tight", memory_bytes=MEMORY // 3), 0).close()
