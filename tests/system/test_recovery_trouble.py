"""What stands in the way of a recovery: bytes that cannot be read for a while, a data directory
that comes late, a job that has failed or was deleted meanwhile, a daemon that is frozen. Each case
here once ended in a loop, in a job that stayed lost, or in an error that named nobody."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time

import luwu
import numpy as np
import pytest
from durable_training import LAYERS, Oracle, Trainer, gradient_of, job_of
from programs import LUWUCTL, TIMEOUT_S, luwuctl

WAIT_S = 60


@pytest.fixture
def durable_cluster(start_cluster):
    def start(nodes=2, **options):
        return start_cluster(nodes=nodes, storage=True, **options)

    return start


def jobs_of(cluster, job):
    """(state, detail) of the job by node."""
    return {
        node["name"]: (entry["state"], entry["detail"])
        for node in luwuctl(cluster.endpoints, "jobs")["nodes"]
        for entry in node["jobs"]
        if entry["name"] == job
    }


def await_jobs(cluster, job, done):
    """Waits until `done` holds for what jobs_of() says."""
    end = time.monotonic() + WAIT_S
    while not done(found := jobs_of(cluster, job)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def ctl(cluster, *arguments):
    return subprocess.run(
        [str(LUWUCTL), "-e", cluster.endpoints, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )


@contextlib.contextmanager
def frozen(cluster, node):
    cluster.daemons[node].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.daemons[node].send_signal(signal.SIGCONT)


def fail(trainer):
    """A gradient that is not finite, in a job that does not skip such steps."""
    step = trainer.step
    trainer.session.begin_step(step)
    for layer in range(LAYERS):
        gradient = gradient_of(step, layer)
        gradient[0] = np.nan
        trainer.session.push(layer, gradient)
    assert trainer.session.commit(step).outcome == "failed"


# ---- a job that has failed -----------------------------------------------------------------------


def test_failed_job_is_not_joined_again_to_train_and_the_error_says_what_to_do(durable_cluster):
    cluster = durable_cluster(nodes=2)
    job = job_of("broken", on_non_finite="fail", keep_undo_state=False, durable_every=0,
                 durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    trainer.train_until(1)
    fail(trainer)
    for _ in range(2):  # however often it is tried
        with pytest.raises(luwu.JobFailedError) as caught:
            trainer.session.reopen(20.0)
        text = str(caught.value)
        assert "layer0" in text and "luwuctl delete broken" in text, text
    # To look at it, it can be opened.
    with luwu.Session(cluster.endpoints, job, 0) as session:
        with pytest.raises(luwu.JobFailedError, match="layer0"):
            session.begin_step(1)
    checks = luwuctl(cluster.endpoints, "status")["nodes"][0]["status"]["checks"]
    assert any("layer0" in check["summary"] for check in checks), checks


def test_job_that_fails_on_one_node_ends_the_commit_with_its_reason(durable_cluster):
    """The commit waited for the other node until its deadline, and named only that one."""
    cluster = durable_cluster(nodes=2)
    cluster.kill(1)
    cluster.daemons[1].env = {**os.environ, "LUWU_FAILPOINTS": "persist.write=error(EIO)"}
    cluster.start(1)
    trainer = Trainer(cluster.endpoints, job_of("at-fault", durability="synced"), Oracle())
    why = None
    for step in range(3):
        try:
            trainer.session.begin_step(step)
            for layer in range(LAYERS):
                trainer.session.push(layer, gradient_of(step, layer))
            result = trainer.session.commit(step, timeout_s=TIMEOUT_S / 2)
            why = None if result.applied else result.culprit
        except luwu.JobFailedError as error:
            why = str(error)
        if why is not None:
            break
    assert why is not None and "node1" in why, why


def test_reopen_waits_as_long_as_it_is_told_and_no_longer(durable_cluster):
    """It waited as long as the session had been told to."""
    cluster = durable_cluster(nodes=1)
    trainer = Trainer(cluster.endpoints, job_of("patience"), Oracle())
    trainer.close()
    session = luwu.Session(cluster.endpoints, trainer.job, 0, timeout_s=36000.0,
                           node_timeout_s=36000.0)
    cluster.kill(0)
    errors = []

    def reopen():
        try:
            session.reopen(0.5)
        except luwu.LuwuError as error:
            errors.append(error)

    thread = threading.Thread(target=reopen, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert cluster.nodes[0].control in str(errors[0])


# ---- what cannot be read -------------------------------------------------------------------------


def start_with(cluster, node, failpoints):
    """Starts all daemons, that of `node` with failpoints."""
    cluster.daemons[node].env = {**os.environ, "LUWU_FAILPOINTS": failpoints}
    cluster.start()


def test_read_that_fails_once_costs_no_step(durable_cluster):
    """The point was left out at once, and without another one the job was lost."""
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("flaky"), Oracle())
    trainer.train_until(4)
    for node in (0, 1):
        cluster.kill(node)
    start_with(cluster, 1, "persist.read=error(EIO)@1")
    assert trainer.resume() == 4
    trainer.train_until(6)
    trainer.check()


def test_what_can_never_be_read_makes_the_job_lost_with_the_shard_and_the_remedy(durable_cluster):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("ruined"), Oracle())
    trainer.train_until(3)
    assert ctl(cluster, "checkpoint", "create", "ruined", "kept").returncode == 0
    for node in (0, 1):
        cluster.kill(node)
    start_with(cluster, 1, "persist.read=error(EIO)")
    found = await_jobs(cluster, "ruined", lambda found: found["node0"][0] == "lost")
    assert "node1" in found["node0"][1] and "shard" in found["node0"][1], found
    with pytest.raises(luwu.JobFailedError, match="luwuctl delete ruined"):
        trainer.session.reopen(20.0)
    refused = ctl(cluster, "checkpoint", "restore", "ruined", "kept")
    assert refused.returncode == 1 and "is lost as before" in refused.stderr, refused.stderr
    assert ctl(cluster, "delete", "ruined").returncode == 0
    assert jobs_of(cluster, "ruined") == {}


def test_lost_job_comes_back_when_the_missing_directory_does(durable_cluster):
    """It stayed lost until the lead was restarted; and what other nodes said differed."""
    cluster = durable_cluster(nodes=3)
    trainer = Trainer(cluster.endpoints, job_of("late"), Oracle())
    trainer.train_until(3)
    for node in range(3):
        cluster.kill(node)
    away = cluster.data_dir(2).with_name("away")
    cluster.data_dir(2).rename(away)
    cluster.start()
    await_jobs(cluster, "late", lambda found: {state for state, _ in found.values()} == {"lost"}
               and len(found) == 2)
    cluster.stop(2)
    shutil.rmtree(cluster.data_dir(2))
    away.rename(cluster.data_dir(2))
    cluster.start(2)
    assert trainer.resume() == 3
    await_jobs(cluster, "late", lambda found: {state for state, _ in found.values()} == {"training"}
               and len(found) == 3)
    trainer.train_until(5)
    trainer.check()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("failpoint", ["persist.rollback.before", "persist.rollback.after"])
def test_restore_cut_by_a_death_is_brought_to_its_end(durable_cluster, victim, failpoint):
    """With the lead dead, one node was at the checkpoint and the lead at its newest point: lost."""
    cluster = durable_cluster(nodes=2)
    cluster.kill(victim)
    cluster.daemons[victim].env = {**os.environ, "LUWU_FAILPOINTS": f"{failpoint}=kill@1"}
    cluster.start(victim)
    trainer = Trainer(cluster.endpoints, job_of("cut"), Oracle())
    trainer.train_until(3)
    assert ctl(cluster, "checkpoint", "create", "cut", "base").returncode == 0
    trainer.train_until(6)
    ctl(cluster, "--timeout-ms", "5000", "checkpoint", "restore", "cut", "base")
    assert not cluster.daemons[victim].alive()
    cluster.kill(victim)
    cluster.daemons[victim].env = None
    cluster.start(victim)
    trainer.durable_step = 0  # what came after the checkpoint is given up
    assert trainer.resume() == 3
    trainer.train_until(5)
    trainer.check()


# ---- deleting while the job comes back -----------------------------------------------------------


def test_job_deleted_while_a_node_was_down_does_not_come_back_with_it(durable_cluster):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("gone"), Oracle())
    trainer.train_until(2)
    for node in (0, 1):
        cluster.kill(node)
    cluster.start(0)  # its round waits for node1
    await_jobs(cluster, "gone", lambda found: found.get("node0", ("",))[0] == "recovering")
    partly = ctl(cluster, "delete", "gone")
    assert partly.returncode == 1 and cluster.nodes[1].control in partly.stderr, partly.stderr
    cluster.start(1)
    found = await_jobs(cluster, "gone", lambda found: found.get("node1", ("",))[0] == "lost")
    assert "node0" not in found and "node0 has no job" in found["node1"][1], found
    assert ctl(cluster, "delete", "gone").returncode == 0
    assert jobs_of(cluster, "gone") == {}
    fresh = Trainer(cluster.endpoints, job_of("gone"), Oracle())
    assert fresh.step == 0
    fresh.train_until(1)


def test_job_is_deleted_on_all_nodes_while_one_is_rolling_it_back(durable_cluster):
    """The node that was busy refused, and kept its part."""
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("busy"), Oracle())
    trainer.train_until(2)
    for node in (0, 1):
        cluster.kill(node)
    start_with(cluster, 1, "persist.rollback.before=delay(3000)")
    await_jobs(cluster, "busy", lambda found: "going back" in found.get("node1", ("", ""))[1])
    deleted = ctl(cluster, "delete", "busy")
    assert deleted.returncode == 0, deleted.stderr
    assert jobs_of(cluster, "busy") == {}
    for node in (0, 1):
        cluster.kill(node)
    cluster.start()
    assert jobs_of(cluster, "busy") == {}


def test_restore_of_a_job_that_is_deleted_ends_and_leaves_the_next_of_that_name_alone(
    durable_cluster,
):
    """Its round never ended: checkpoint commands hung, and the next job was stopped and lost."""
    cluster = durable_cluster(nodes=2)
    cluster.kill(1)
    failpoints = "persist.rollback.before=delay(3000)@1"
    cluster.daemons[1].env = {**os.environ, "LUWU_FAILPOINTS": failpoints}
    cluster.start(1)
    other = Trainer(cluster.endpoints, job_of("other"), Oracle())
    other.train_until(1)
    trainer = Trainer(cluster.endpoints, job_of("raced"), Oracle())
    trainer.train_until(2)
    assert ctl(cluster, "checkpoint", "create", "raced", "base").returncode == 0
    trainer.session.close()
    restores = []
    thread = threading.Thread(
        target=lambda: restores.append(ctl(cluster, "checkpoint", "restore", "raced", "base"))
    )
    thread.start()
    await_jobs(cluster, "raced", lambda found: "going back" in found.get("node1", ("", ""))[1])
    deleted = ctl(cluster, "delete", "raced", "--force")
    assert deleted.returncode == 0, deleted.stderr
    thread.join(TIMEOUT_S)
    assert restores and restores[0].returncode == 1, restores
    assert "raced" in restores[0].stderr
    listed = ctl(cluster, "checkpoint", "list", "other")
    assert listed.returncode == 0, listed.stderr
    # Without a point: it could not come back if somebody stopped it.
    spec = job_of("raced", durable_every=0, durability="memory")
    fresh = Trainer(cluster.endpoints, spec, Oracle())
    log = cluster.daemons[0].log().count("recovery_begins job=raced")
    fresh.train_until(3)
    # What the round of the old job would do, it would do before this one is through.
    assert ctl(cluster, "checkpoint", "create", "other", "mark").returncode == 0
    assert ctl(cluster, "checkpoint", "restore", "other", "mark").returncode == 0
    fresh.train_until(6)
    fresh.check()
    assert fresh.rollbacks == []
    assert cluster.daemons[0].log().count("recovery_begins job=raced") == log


def test_checkpoint_made_while_its_job_is_deleted_does_not_keep_the_node_from_starting(
    durable_cluster, tmp_path
):
    """Its record was written after the job's were removed: no start got beyond it."""
    cluster = durable_cluster(nodes=2)
    cluster.kill(1)
    reached = tmp_path / "failpoints"
    cluster.daemons[1].env = {
        **os.environ,
        "LUWU_FAILPOINTS": "persist.checkpoint=delay(7000)@1",  # longer than a deletion waits
        "LUWU_FAILPOINT_LOG": str(reached),
    }
    cluster.start(1)
    other = Trainer(cluster.endpoints, job_of("other"), Oracle())
    other.train_until(2)
    trainer = Trainer(cluster.endpoints, job_of("victim"), Oracle())
    trainer.train_until(2)
    trainer.session.close()
    thread = threading.Thread(target=lambda: ctl(cluster, "checkpoint", "create", "victim", "late"))
    thread.start()
    end = time.monotonic() + WAIT_S
    while not (reached.exists() and "persist.checkpoint" in reached.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    deleted = ctl(cluster, "delete", "victim", "--force")
    thread.join(TIMEOUT_S)
    assert deleted.returncode == 0, deleted.stderr
    for node in (0, 1):
        cluster.kill(node)
    cluster.daemons[1].env = None
    cluster.start()
    assert jobs_of(cluster, "victim") == {}
    other.resume()
    other.train_until(4)
    other.check()


def test_lead_that_keeps_a_job_keeps_it_everywhere(durable_cluster):
    """A refusal by one node left the others without their part."""
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("held"), Oracle())
    trainer.train_until(1)
    refused = ctl(cluster, "delete", "held")
    assert refused.returncode == 1 and "open sessions" in refused.stderr, refused.stderr
    assert set(jobs_of(cluster, "held")) == {"node0", "node1"}
    trainer.train_until(2)
    trainer.check()


# ---- frozen daemons ------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [0, 1])
def test_frozen_node_is_named_by_every_checkpoint_command(durable_cluster, node):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("cold"), Oracle())
    trainer.train_until(1)
    assert ctl(cluster, "checkpoint", "create", "cold", "first").returncode == 0
    endpoint = cluster.nodes[1 - node].control  # of the one that answers
    with frozen(cluster, node):
        for arguments in (["list", "cold"], ["create", "cold", "second"],
                          ["restore", "cold", "first"], ["delete", "cold", "first"]):
            done = subprocess.run(
                [str(LUWUCTL), "-e", endpoint, "--timeout-ms", "1500", "checkpoint", *arguments],
                capture_output=True, text=True, timeout=TIMEOUT_S,
            )
            assert done.returncode == 1
            assert f"node{node} ({cluster.nodes[node].control})" in done.stderr, done.stderr
            assert "Deadline" not in done.stderr, done.stderr
