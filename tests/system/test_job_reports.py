"""What luwuctl tells of jobs: what they take on disk, and that one cannot go on."""

import json
import subprocess

import luwu
import pytest
from durable_training import ELEMENTS, LAYERS, Oracle, Trainer, job_of
from programs import LUWUCTL, TIMEOUT_S, luwuctl

MASTER_BYTES = 4 * ELEMENTS * LAYERS


def ctl(cluster, *arguments):
    return subprocess.run(
        [str(LUWUCTL), "-e", cluster.endpoints, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )


def stored_bytes(cluster, job):
    """Of the whole cluster."""
    return sum(
        entry["stored_bytes"]
        for node in luwuctl(cluster.endpoints, "status")["nodes"]
        for entry in node["status"]["jobs"]
        if entry["name"] == job
    )


def test_bytes_on_disk_of_each_job_are_shown(start_cluster):
    cluster = start_cluster(nodes=2, storage=True)
    trainer = Trainer(cluster.endpoints, job_of("kept"), Oracle())
    trainer.train_until(3)
    other = Trainer(
        cluster.endpoints, job_of("fleeting", durable_every=0, durability="memory"), Oracle()
    )
    before = stored_bytes(cluster, "kept")
    assert before >= MASTER_BYTES
    assert stored_bytes(cluster, "fleeting") == 0
    assert ctl(cluster, "checkpoint", "create", "kept", "one").returncode == 0
    trainer.train_until(6)
    assert stored_bytes(cluster, "kept") >= before + MASTER_BYTES  # the checkpoint keeps its own
    table = ctl(cluster, "status").stdout
    assert "ON DISK" in table, table
    other.close()


def test_job_that_lost_a_node_is_an_error_with_a_hint(start_cluster):
    """Status said OK, although no step could ever end."""
    cluster = start_cluster(nodes=2)
    job = job_of("halved", durable_every=0, durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    trainer.train_until(2)
    assert luwuctl(cluster.endpoints, "status")["overall"] == "SEVERITY_OK"
    cluster.kill(1)
    cluster.start(1)
    done = ctl(cluster, "-o", "json", "status")
    assert done.returncode == 3
    status = json.loads(done.stdout)
    assert status["overall"] == "SEVERITY_ERR"
    [check] = [
        check
        for node in status["nodes"]
        for check in node["status"]["checks"]
        if check["name"] == "JOB_PART_LOST"
    ]
    assert "halved" in check["summary"] and "node1" in check["summary"]
    assert "luwuctl delete halved" in check["hint"]
    assert "JOB_PART_LOST" in ctl(cluster, "status").stdout
    luwu.delete_job(cluster.endpoints, "halved", force=True)
    assert luwuctl(cluster.endpoints, "status")["overall"] == "SEVERITY_OK"


@pytest.mark.parametrize("name", [".", "..", "-x", ".hidden", "", "a/b", "-"])
def test_names_of_checkpoints_that_mean_something_else_are_refused(start_cluster, name):
    cluster = start_cluster(nodes=1, storage=True)
    trainer = Trainer(cluster.endpoints, job_of("named"), Oracle())
    done = ctl(cluster, "checkpoint", "create", "--", "named", name)
    assert done.returncode == 2 and "letter or digit" in done.stderr, done.stderr
    trainer.close()


def test_export_into_a_data_directory_is_refused(start_cluster, tmp_path):
    cluster = start_cluster(nodes=2, storage=True)
    trainer = Trainer(cluster.endpoints, job_of("inside"), Oracle())
    trainer.train_until(1)
    link = tmp_path / "link"
    link.symlink_to(cluster.data_dir(1))
    for folder in (cluster.data_dir(0), cluster.data_dir(0) / "extents", link / "export"):
        done = ctl(cluster, "export", "inside", str(folder))
        assert done.returncode == 1 and "data directory" in done.stderr, done.stderr
    for node in (0, 1):
        assert not list(cluster.data_dir(node).rglob("*safetensors*"))
    done = ctl(cluster, "export", "inside", str(tmp_path / "outside"))
    assert done.returncode == 0, done.stderr
    trainer.close()
