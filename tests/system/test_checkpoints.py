"""Named checkpoints through luwuctl: made while training goes on, listed, restored, deleted."""

import json
import subprocess
import threading

import luwu
import numpy as np
import pytest
from durable_training import Oracle, Trainer, job_of
from programs import LUWUCTL, TIMEOUT_S


def checkpoint(cluster, *arguments, expect=0):
    """The JSON of `luwuctl checkpoint ...`, or its error text when `expect` is not 0."""
    done = subprocess.run(
        [str(LUWUCTL), "-e", cluster.endpoints, "-o", "json", "checkpoint", *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )
    assert done.returncode == expect, done.stderr + done.stdout
    return json.loads(done.stdout) if expect == 0 else done.stderr


def names(cluster, job):
    return [entry["name"] for entry in checkpoint(cluster, "list", job)["checkpoints"]]


@pytest.fixture
def cluster(start_cluster):
    return start_cluster(nodes=2, storage=True)


@pytest.mark.parametrize("durable_every", [0, 1, 4])
def test_idle_job_is_kept_and_restored(cluster, durable_every):
    job = job_of("idle", durable_every=durable_every, durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    trainer.train_until(3)
    assert checkpoint(cluster, "create", "idle", "three")["step"] == 3
    trainer.train_until(6)
    assert names(cluster, "idle") == ["three"]
    assert checkpoint(cluster, "restore", "idle", "three")["step"] == 3
    with pytest.raises(luwu.RolledBackError) as caught:
        trainer.train_step()
    assert caught.value.step == 3
    assert trainer.session.reopen(30.0) == 3
    trainer.step = 3
    trainer.train_until(8)
    trainer.check()
    checkpoint(cluster, "delete", "idle", "three")
    assert names(cluster, "idle") == []


def damage_what_has_not_changed(path, before):
    """One byte in each block that is as it was: of the checkpoint, not of what came later."""
    now = path.read_bytes()
    damaged = 0
    with open(path, "r+b") as file:
        for at in range(0, min(len(before), len(now)), 4096):
            block = now[at : at + 4096]
            if block != before[at : at + 4096] or not any(block):
                continue
            file.seek(at + 100)
            file.write(bytes([block[100] ^ 1]))
            damaged += 1
    assert damaged > 0


@pytest.mark.parametrize("victim", [0, 1])
def test_damaged_checkpoint_is_refused_before_anything_newer_is_dropped(cluster, victim):
    """The points after it were dropped first: the job was lost, and synced steps with it."""
    elements = 1 << 16
    layer = luwu.LayerSpec("a", elements, (luwu.TensorSpec("w", (elements,), 0),))
    job = luwu.JobSpec(
        "held", 1, (layer,), optimizer=luwu.AdamW(), durable_every=1, durability="synced",
        shard_elements=elements // 8, overflow_bytes=1 << 20,
    )  # fmt: skip
    values = np.arange(elements, dtype=np.float32)
    with luwu.Session(cluster.endpoints, job, 0) as session:
        session.load(0, values)
        session.finish_load()

        def train(step):
            session.begin_step(step)
            session.push(0, np.ones(elements, dtype=np.uint16))
            assert session.commit(step).durability == "synced"

        for step in range(3):
            train(step)
        checkpoint(cluster, "create", "held", "base")
        extents = next((cluster.data_dir(victim) / "extents").iterdir())
        before = extents.read_bytes()
        for step in range(3, 8):
            train(step)
        newest = session.read(0)
        damage_what_has_not_changed(extents, before)
        text = checkpoint(cluster, "restore", "held", "base", expect=1)
        assert f"node{victim}" in text and "shard" in text and "goes on as it was" in text, text
        train(8)  # in the same session
    for node in range(2):
        cluster.kill(node)
    cluster.start()
    with luwu.Session(cluster.endpoints, job, 0, timeout_s=60.0) as session:
        assert session.current_step == 9
        assert not np.array_equal(session.read(0), newest)


@pytest.mark.parametrize("update_mode", ["immediate", "deferred", "in place"])
@pytest.mark.parametrize("durable_every", [0, 1, 3])
def test_made_under_training_each_is_a_step_boundary_of_all_nodes(
    cluster, update_mode, durable_every
):
    in_place = update_mode == "in place"
    job = job_of(
        "busy",
        durable_every=durable_every,
        durability="memory",
        update_mode="immediate" if in_place else update_mode,
        **({"keep_undo_state": False, "on_non_finite": "fail"} if in_place else {}),
    )
    trainer = Trainer(cluster.endpoints, job, Oracle())
    made = {}
    stop = threading.Event()

    def keep():
        for name in ("a", "b", "c"):
            made[name] = checkpoint(cluster, "create", "busy", name)["step"]
        stop.set()

    thread = threading.Thread(target=keep)
    thread.start()
    while not stop.is_set() and thread.is_alive():
        trainer.train_until(trainer.step + 1)
    thread.join()
    assert sorted(made) == ["a", "b", "c"]
    assert names(cluster, "busy") == ["a", "b", "c"]
    for name in ("b", "a", "c"):
        checkpoint(cluster, "restore", "busy", name)
        trainer.durable_step = 0
        assert trainer.session.reopen(30.0) == made[name]
        trainer.step = made[name]
        trainer.check()
    trainer.train_until(trainer.step + 2)
    trainer.check()


def test_survives_restarts_and_later_points(cluster):
    trainer = Trainer(cluster.endpoints, job_of("kept"), Oracle())
    trainer.train_until(2)
    checkpoint(cluster, "create", "kept", "early")
    trainer.train_until(7)
    for node in (0, 1):
        cluster.kill(node)
    cluster.start()
    assert trainer.resume() == 7
    assert checkpoint(cluster, "restore", "kept", "early")["step"] == 2
    trainer.durable_step = 0
    assert trainer.session.reopen(30.0) == 2
    trainer.step = 2
    trainer.check()
    # What came after the checkpoint is gone for good, on all nodes.
    for node in (0, 1):
        cluster.kill(node)
    cluster.start()
    assert trainer.session.reopen(60.0) == 2
    trainer.train_until(4)
    trainer.check()


def test_wrong_requests_are_told(cluster):
    trainer = Trainer(cluster.endpoints, job_of("strict"), Oracle())
    trainer.train_until(1)
    checkpoint(cluster, "create", "strict", "one")
    assert "already" in checkpoint(cluster, "create", "strict", "one", expect=1)
    assert "no checkpoint 'two'" in checkpoint(cluster, "delete", "strict", "two", expect=1)
    assert "two" in checkpoint(cluster, "restore", "strict", "two", expect=1)
    assert "letters" in checkpoint(cluster, "create", "strict", "a/b", expect=2)
    assert "no job" in checkpoint(cluster, "create", "nobody", "one", expect=1)
    trainer.train_until(2)  # nothing of that has disturbed it
    trainer.check()
    assert trainer.rollbacks == []


def test_without_data_directory_there_are_none(start_cluster):
    cluster = start_cluster(nodes=1)
    trainer = Trainer(
        cluster.endpoints, job_of("plain", durable_every=0, durability="memory"), Oracle()
    )
    assert "--data-dir" in checkpoint(cluster, "create", "plain", "one", expect=1)
    trainer.close()
