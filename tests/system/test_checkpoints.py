"""Named checkpoints through luwuctl: made while training goes on, listed, restored, deleted."""

import json
import subprocess
import threading

import luwu
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
