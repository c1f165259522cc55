"""Exports of named checkpoints: while training goes on, between clusters, and of jobs that are
lost."""

import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time

import pytest
from interchange_files import (
    STATE_JOBS,
    assert_same,
    luwuctl,
    make_job,
    make_weights,
    masters,
    open_session,
    read_file,
    read_folder,
    train,
    write_file,
)
from programs import LUWUCTL, TIMEOUT_S


def train_on(session, job, steps):
    """Gradients by step, whoever trains it."""
    for step in steps:
        train(session, job, [step], 100 + step)


def keep(cluster, job, name):
    luwuctl(cluster, "checkpoint", "create", job.name, name)


@contextlib.contextmanager
def training_meanwhile(session, job, first):
    """Trains from `first` on for as long as the body lasts; at least one step in it."""
    ended, begun, errors = threading.Event(), threading.Event(), []

    def go_on():
        try:
            for step in itertools.count(first):
                if ended.is_set():
                    return
                train_on(session, job, [step])
                begun.set()
        except Exception as error:  # noqa: BLE001 - it is the test's result
            errors.append(error)
            begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert begun.wait(TIMEOUT_S)
        yield
        assert begun.is_set()
    finally:
        ended.set()
        thread.join()
    assert not errors, errors


@pytest.mark.parametrize("kind", STATE_JOBS)
def test_a_checkpoint_is_exported_while_training_goes_on_and_moves_between_daemons(
    cluster, start_cluster, tmp_path, kind
):
    write_file(tmp_path / "in.safetensors", make_weights())
    job = make_job(**STATE_JOBS[kind])
    with open_session(cluster, job) as session:  # undisturbed
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        train_on(session, job, range(10))
        expected = masters(session, job)

    job = make_job(durable_every=1, durability="logged", **STATE_JOBS[kind])
    four = start_cluster(nodes=4, storage=True)
    with open_session(four, job) as session:
        luwuctl(four, "import", job.name, tmp_path / "in.safetensors")
        train_on(session, job, range(3))
        keep(four, job, "three")
        arguments = ("export", job.name, tmp_path / "three", "--optimizer-state")
        with training_meanwhile(session, job, 3):
            done = luwuctl(four, "-o", "json", *arguments, "--checkpoint", "three")
        assert json.loads(done.stdout)["step"] == 3
        assert session.current_step > 3

    two = start_cluster(nodes=2, storage=True)
    open_session(two, job).close()
    luwuctl(two, "import", job.name, tmp_path / "three", "--optimizer-state")
    with open_session(two, job) as session:
        assert session.current_step == 3
        train_on(session, job, range(3, 7))
        keep(two, job, "seven")
        live = ("export", job.name, tmp_path / "live", "--optimizer-state")
        luwuctl(two, *live)
        train_on(session, job, [7])
        arguments = ("export", job.name, tmp_path / "seven", "--optimizer-state")
        luwuctl(two, *arguments, "--checkpoint", "seven")
    for file in ("model.safetensors", "optimizer.safetensors"):
        exports = [read_file(tmp_path / folder / file) for folder in ("live", "seven")]
        numbers = {metadata.pop("luwu.export") for _, metadata in exports}
        assert len(numbers) == 2, "each export has a number of its own"
        assert exports[0] == exports[1], f"{file}: the checkpoint is not what the live job was"

    three = start_cluster(nodes=3, storage=True)
    open_session(three, job).close()
    luwuctl(three, "import", job.name, tmp_path / "seven", "--optimizer-state")
    with open_session(three, job) as session:
        assert session.current_step == 7
        train_on(session, job, range(7, 10))
        assert_same(masters(session, job), expected)


def test_a_checkpoint_that_is_not_there_is_named(cluster, start_cluster, tmp_path):
    job = make_job()
    write_file(tmp_path / "in.safetensors", make_weights())

    def refused(where, job_name, name):
        arguments = ("export", job_name, tmp_path / "out", "--checkpoint", name)
        return luwuctl(where, *arguments, ok=False).stderr

    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        assert "no data directory" in refused(cluster, job.name, "one")
    stored = start_cluster(nodes=2, storage=True)
    with open_session(stored, job):
        luwuctl(stored, "import", job.name, tmp_path / "in.safetensors")
        assert "no checkpoint 'one'" in refused(stored, job.name, "one")
        assert "no job" in refused(stored, "nobody", "one")
        assert "empty" in refused(stored, job.name, "")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_cannot_be_deleted_while_it_is_exported(
    start_cluster, tmp_path, monkeypatch
):
    job = make_job()
    weights = make_weights()
    write_file(tmp_path / "in.safetensors", weights)
    monkeypatch.setenv("LUWU_FAILPOINTS", "persist.read=delay(300)")
    running = start_cluster(nodes=2, storage=True)
    with open_session(running, job) as session:
        luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
        keep(running, job, "zero")
        train_on(session, job, range(2))
        command = [LUWUCTL, "-e", running.endpoints, "export", job.name, tmp_path / "out"]
        process = subprocess.Popen([*map(str, command), "--checkpoint", "zero"])
        try:
            end = time.monotonic() + TIMEOUT_S
            refused = None
            while process.poll() is None and time.monotonic() < end:
                if list(tmp_path.glob("out/.luwu-export-*")):
                    arguments = ("checkpoint", "delete", job.name, "zero")
                    refused = luwuctl(running, *arguments, ok=False)
                    break
                time.sleep(0.01)
            assert refused is not None and "is being exported" in refused.stderr
            assert process.wait(TIMEOUT_S) in (0, 1)
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:  # unless a node let go of it before it had begun
            got = read_folder(tmp_path / "out")
            assert {name: read[2] for name, read in got.items()} == {
                name: values.tobytes() for name, values in weights.items()
            }
        luwuctl(running, "checkpoint", "delete", job.name, "zero")
        train_on(session, job, [2])


def states_of(cluster, job):
    """Of all nodes."""
    done = subprocess.run(
        [LUWUCTL, "-e", cluster.endpoints, "-o", "json", "status"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    nodes = [node["status"] for node in json.loads(done.stdout)["nodes"]]
    return {each["state"] for node in nodes for each in node["jobs"] if each["name"] == job.name}


def test_checkpoints_of_a_job_that_is_lost_are_rescued_where_all_nodes_have_the_same(
    start_cluster, tmp_path
):
    running = start_cluster(nodes=2, storage=True)
    job = make_job(durable_every=1, durability="synced")
    write_file(tmp_path / "in.safetensors", make_weights())
    session = open_session(running, job)
    luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
    train_on(session, job, range(2))
    keep(running, job, "good")
    expected = masters(session, job)
    keep(running, job, "torn")
    running.stop()
    data = running.data_dir(1)
    shutil.copytree(data, tmp_path / "old")
    running.start()
    assert session.reopen(60.0) == 2
    session.wait_loaded(60.0)
    luwuctl(running, "checkpoint", "delete", job.name, "torn")
    train_on(session, job, range(2, 6))
    keep(running, job, "torn")
    session.close()
    running.stop()
    # Node 1 gets a directory from its past: the nodes have no point in common any more.
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "old", data)
    running.start()
    end = time.monotonic() + TIMEOUT_S
    while states_of(running, job) != {"lost"}:
        assert time.monotonic() < end, states_of(running, job)
        time.sleep(0.05)
    done = luwuctl(
        running, "export", job.name, tmp_path / "torn", "--checkpoint", "torn", ok=False
    )
    assert "different checkpoints 'torn'" in done.stderr and "steps 6 and 2" in done.stderr
    luwuctl(running, "export", job.name, tmp_path / "good", "--checkpoint", "good")
    got = read_folder(tmp_path / "good")
    assert {name: read[2] for name, read in got.items()} == {
        name: values.tobytes() for name, values in expected.items()
    }
