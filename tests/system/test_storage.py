"""Data directories of real daemons that stop in good order, fill up, or are damaged."""

import shutil
import subprocess
import time
from pathlib import Path

import luwu
import numpy as np
import pytest
from durable_training import LAYERS, Oracle, Trainer, gradient_of, job_of
from programs import LUWUCTL, TIMEOUT_S, luwuctl

RESUME_S = 10  # after space has come back


def checks(endpoints: str) -> dict:
    nodes = luwuctl(endpoints, "status")["nodes"]
    return {check["name"]: check for node in nodes for check in node["status"].get("checks", [])}


def test_a_daemon_that_is_stopped_keeps_the_open_step(start_cluster):
    """Although the last point of the job is older: nothing has to be trained again."""
    cluster = start_cluster(nodes=2, storage=True)
    job = job_of("stopped", durable_every=100, durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    trainer.train_until(7)
    trainer.session.close()
    cluster.stop(0)
    cluster.stop(1)
    cluster.start(0)
    cluster.start(1)
    again = Trainer(cluster.endpoints, job, trainer.oracle)
    assert again.step == 7
    again.check()
    again.train_until(9)
    again.check()
    again.close()


def a_step_of_a_large_job(endpoints, name) -> luwu.JobSpec:
    """8 M parameters with a durable point of their first step."""
    elements = 1 << 20
    layers = tuple(
        luwu.LayerSpec(f"l{i}", elements, (luwu.TensorSpec(f"t{i}", (elements,), 0),))
        for i in range(8)
    )
    job = luwu.JobSpec(
        name, 1, layers, shard_elements=1 << 18, overflow_bytes=1 << 20, durable_every=1,
        durability="synced",
    )  # fmt: skip
    with luwu.Session(endpoints, job, 0) as session:
        session.finish_load(allow_missing=True)
        session.begin_step(0)
        for layer in range(8):
            session.push(layer, np.full(elements, 1e-3, np.float32))
        assert session.commit(0).applied
    return job


def test_jobs_that_shared_the_memory_of_a_node_share_it_again_after_a_restart(start_cluster):
    """The second takes what the first has left, and used to take more when it came back first."""
    cluster = start_cluster(nodes=1, storage=True, memory="192MiB")
    trainer = Trainer(cluster.endpoints, job_of("a-small"), Oracle())
    trainer.train_until(2)
    large = a_step_of_a_large_job(cluster.endpoints, "A-large")  # its name comes first
    jobs = luwuctl(cluster.endpoints, "jobs")["nodes"][0]["jobs"]
    tiers = {job["name"]: job["tiers"] for job in jobs}
    assert int(tiers["A-large"].get("spilled_bytes", 0)) > 0
    cluster.kill(0)
    cluster.start(0)
    trainer.resume()
    trainer.train_until(4)
    trainer.check()
    trainer.close()
    with luwu.Session(cluster.endpoints, large, 0) as session:
        session.wait_loaded(30)
        assert session.current_step == 1


def test_job_that_lacks_memory_after_a_restart_says_so_on_all_nodes(start_cluster):
    """All daemons ran, and the hint was to start them."""
    cluster = start_cluster(nodes=2, storage=True, memory="256MiB")
    job = a_step_of_a_large_job(cluster.endpoints, "tight")
    cluster.kill(1)
    config = Path(cluster.daemons[1].arguments[-1])
    text = config.read_text()
    assert 'budget = "256MiB"' in text
    config.write_text(text.replace('budget = "256MiB"', 'budget = "16MiB"'))
    cluster.start(1)

    def hints():
        return {
            node["name"]: check["hint"]
            for node in luwuctl(cluster.endpoints, "status")["nodes"]
            for check in node["status"].get("checks", [])
            if check["name"] == "JOB_RECOVERING"
        }

    end = time.monotonic() + RESUME_S
    while not (len(found := hints()) == 2 and all("memory.budget" in h for h in found.values())):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    cluster.kill(1)
    config.write_text(text)
    cluster.start(1)
    with luwu.Session(cluster.endpoints, job, 0, timeout_s=60.0) as session:
        session.wait_loaded(30)
        assert session.current_step == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "luwu-test", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def store_on(disk, folder) -> None:
    """The data directory of node0 of a cluster in `folder`; the log lies elsewhere."""
    (folder / "node0").mkdir()
    (disk / "data").mkdir()
    (folder / "node0" / "data").symlink_to(disk / "data")


def fill(path) -> None:
    with open(path, "wb", buffering=0) as file:
        block = bytes(65536)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]


def test_a_full_disk_holds_training_back_and_lets_it_go_on(start_cluster, small_disk, tmp_path):
    store_on(small_disk, tmp_path)
    cluster = start_cluster(nodes=1, storage=True, folder=tmp_path)
    trainer = Trainer(cluster.endpoints, job_of("full", durability="synced"), Oracle())
    trainer.train_until(3)
    ballast = small_disk / "ballast"
    fill(ballast)
    session = trainer.session
    with pytest.raises(luwu.DeadlineError):
        for step in range(3, 5000):  # the log has space of its own for a while
            session.begin_step(step, timeout_s=5)
            for layer in range(LAYERS):
                session.push(layer, gradient_of(step, layer), timeout_s=5)
            session.commit(step, timeout_s=5)
            trainer.step = step + 1
    full = checks(cluster.endpoints)["STORAGE_FULL"]
    assert full["severity"] == "SEVERITY_ERR" and full["hint"]
    for layer in range(LAYERS):  # what is served is in memory
        weights = session.fetch(layer, trainer.step, timeout_s=5)
        np.testing.assert_array_equal(weights, trainer.oracle.weights(trainer.step, layer))
    ballast.unlink()
    result = session.commit(trainer.step, timeout_s=RESUME_S)
    assert result.applied and result.durability == "synced"
    trainer.step += 1
    trainer.train_until(trainer.step + 5)
    trainer.check()
    assert not trainer.rollbacks  # nothing was lost, and nobody had to come back
    end = time.monotonic() + RESUME_S
    while "STORAGE_FULL" in checks(cluster.endpoints):
        assert time.monotonic() < end
        time.sleep(0.1)
    trainer.close()


def test_a_daemon_that_waits_for_space_ends_at_once_when_it_is_told_to(start_cluster, small_disk,
                                                                       tmp_path):
    """It used to abort: RocksDB asserts that a log which failed is not synced."""
    store_on(small_disk, tmp_path)
    cluster = start_cluster(nodes=1, storage=True, folder=tmp_path)
    trainer = Trainer(cluster.endpoints, job_of("full", durability="synced"), Oracle())
    trainer.train_until(3)
    fill(small_disk / "ballast")
    with pytest.raises(luwu.DeadlineError):
        for step in range(3, 5000):
            trainer.session.begin_step(step, timeout_s=3)
            for layer in range(LAYERS):
                trainer.session.push(layer, gradient_of(step, layer), timeout_s=3)
            if trainer.session.commit(step, timeout_s=3).durability == "synced":
                trainer.durable_step = step + 1
            trainer.step = step + 1
    assert cluster.stop(0) == 0
    (small_disk / "ballast").unlink()
    cluster.start(0)
    trainer.resume()
    trainer.train_until(trainer.step + 3)
    trainer.check()
    trainer.close()


def test_a_daemon_starts_on_a_full_disk_and_a_job_can_be_deleted_there(
    start_cluster, small_disk, tmp_path
):
    """It used to wait for space before it served anything, and so did the deletion."""
    store_on(small_disk, tmp_path)
    cluster = start_cluster(nodes=1, storage=True, folder=tmp_path)
    trainer = Trainer(cluster.endpoints, job_of("full", durability="synced"), Oracle())
    trainer.train_until(3)
    trainer.session.close()
    cluster.kill(0)
    fill(small_disk / "ballast")
    cluster.start(0)
    again = Trainer(cluster.endpoints, job_of("full", durability="synced"), trainer.oracle)
    assert again.step == 3
    again.check()
    again.session.close()
    luwu.delete_job(cluster.endpoints, "full")
    assert shutil.disk_usage(small_disk).free > 0


def test_checkpoint_that_waits_for_a_full_disk_holds_no_other_command_up(
    start_cluster, small_disk, tmp_path
):
    """All commands of all jobs stood behind it, its remedies too, also when luwuctl was gone."""
    store_on(small_disk, tmp_path)
    cluster = start_cluster(nodes=1, storage=True, folder=tmp_path)

    def run(*arguments):
        return subprocess.run(
            [str(LUWUCTL), "-e", cluster.endpoints, *arguments],
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip

    idle = Trainer(cluster.endpoints, job_of("idle"), Oracle())
    idle.train_until(2)
    for name in ("one", "two"):
        assert run("checkpoint", "create", "idle", name).returncode == 0
    trainer = Trainer(cluster.endpoints, job_of("full", durability="synced"), Oracle())
    trainer.train_until(3)
    fill(small_disk / "ballast")
    with pytest.raises(luwu.DeadlineError):
        for step in range(3, 5000):
            trainer.session.begin_step(step, timeout_s=3)
            for layer in range(LAYERS):
                trainer.session.push(layer, gradient_of(step, layer), timeout_s=3)
            trainer.session.commit(step, timeout_s=3)
            trainer.step = step + 1
    create = [str(LUWUCTL), "-e", cluster.endpoints, "checkpoint", "create", "full", "late"]
    waiting = subprocess.Popen(create, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for command in (["list", "idle"], ["delete", "idle", "one"], ["restore", "idle", "two"]):
        done = run("--timeout-ms", "20000", "checkpoint", *command)
        assert done.returncode == 0, (command, done.stderr)
    assert waiting.poll() is None
    busy = run("--timeout-ms", "1000", "checkpoint", "delete", "full", "late")
    assert busy.returncode == 1 and "is being made" in busy.stderr, busy.stderr
    waiting.kill()
    waiting.wait()
    # Its caller is gone, and so is the wait: the name is free.
    end = time.monotonic() + RESUME_S
    while "has no checkpoint" not in run("checkpoint", "delete", "full", "late").stderr:
        assert time.monotonic() < end
        time.sleep(0.1)
    (small_disk / "ballast").unlink()
    assert trainer.session.commit(trainer.step, timeout_s=RESUME_S).applied
