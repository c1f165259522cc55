"""Jobs whose state is larger than their memory, on real daemons with real disks."""

import json
import re
import subprocess
from pathlib import Path

import luwu
import numpy as np
import pytest
from programs import LUWUCTL

LAYERS = 8
ELEMENTS = 2 << 20  # of a layer
SHARD = 1 << 18
STEPS = 20
MIB = 1 << 20
# What the model takes in memory: two generations of 12 bytes and two served copies of 2.
IN_MEMORY = LAYERS * ELEMENTS * (2 * 12 + 2 * 2)
BUDGET = IN_MEMORY // 4 + 16 * MIB  # and inbox, overflow, tables
# Stacks, allocator, gRPC, RocksDB beside what the budget counts: measured at 40 MiB.
BESIDE = 96 * MIB


def job_of(name: str, **options) -> luwu.JobSpec:
    layers = tuple(
        luwu.LayerSpec(f"layer{i}", ELEMENTS, (luwu.TensorSpec(f"w{i}", (ELEMENTS,), 0),))
        for i in range(LAYERS)
    )
    return luwu.JobSpec(
        name, 1, layers, optimizer=luwu.AdamW(lr=1e-3), shard_elements=SHARD,
        overflow_bytes=MIB, keep_undo_state=True, **options,
    )  # fmt: skip


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))


def train(endpoints: str, job: luwu.JobSpec, watch=lambda: None):
    """Masters and moments of the first and the last layer after all steps."""
    random = np.random.default_rng(7)
    weights = [random.standard_normal(ELEMENTS, dtype=np.float32) for _ in range(LAYERS)]
    gradient = random.standard_normal(ELEMENTS, dtype=np.float32)
    gradients = (gradient.view(np.uint32) >> 16).astype(np.uint16)  # bf16
    with luwu.Session(endpoints, job, 0, transport="shm") as session:
        for layer, values in enumerate(weights):
            session.load(layer, values)
        session.finish_load()
        for step in range(STEPS):
            session.begin_step(step)
            for layer in reversed(range(LAYERS)):
                session.push(layer, np.roll(gradients, step * LAYERS + layer))
                watch()
            assert session.commit(step).applied
            watch()
        arrays = [
            session.read(layer, quantity)
            for layer in (0, LAYERS - 1)
            for quantity in ("master", "moment1", "moment2")
        ]
        arrays.append(session.fetch(LAYERS - 1, STEPS))
        return arrays


def check_plan(endpoints: str) -> None:
    command = [str(LUWUCTL), "-e", endpoints, "plan", "tight"]
    text = subprocess.run([*command, "-o", "json"], capture_output=True, check=True).stdout
    plan = json.loads(text)["nodes"][0]
    streamed = plan["step_read_bytes"]
    assert plan["resident_bytes"] // 2 + streamed == LAYERS * ELEMENTS * 12
    assert plan["loads"] == streamed // (12 * SHARD) * (STEPS + 1) or plan["wasted"] > 0
    assert plan["predicted_update_seconds"] > 0 and plan["last_step_seconds"] > 0
    assert plan["read_ahead"] > 0
    table = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "STATE ON DISK" in table


@pytest.mark.parametrize("engine", ["extents", "rocksdb_values"])
def test_four_times_the_memory_trains_with_equal_bits_and_within_its_budget(start_cluster, engine):
    roomy = start_cluster(nodes=1, memory=f"{IN_MEMORY // MIB + 256}MiB")
    expected = train(roomy.endpoints, job_of("roomy"))
    roomy.stop(0)
    tight = start_cluster(
        nodes=1, memory=f"{BUDGET // MIB}MiB", storage=True,
        storage_settings=f'engine = "{engine}"',
    )  # fmt: skip
    pid = tight.daemons[0].pid
    peak = 0

    def watch():
        nonlocal peak
        peak = max(peak, resident_bytes(pid))

    spilled = train(tight.endpoints, job_of("tight"), watch)
    for one, other in zip(expected, spilled):
        np.testing.assert_array_equal(one, other)
    check_plan(tight.endpoints)
    memtables = 0 if engine == "extents" else 800 * MIB  # RocksDB's own, docs/operating/storage.md
    assert BUDGET // 2 < peak < BUDGET + BESIDE + memtables, f"{peak / MIB:.0f} MiB"


def test_a_job_without_room_for_its_state_is_refused_with_the_bytes_and_the_remedy(start_cluster):
    cluster = start_cluster(nodes=1, memory=f"{BUDGET // MIB}MiB")
    with pytest.raises(luwu.ResourceExhaustedError, match="data directory") as refusal:
        luwu.Session(cluster.endpoints, job_of("no-room"), 0).close()
    assert re.search(r"a budget of \S+ MiB .* would do", str(refusal.value))
