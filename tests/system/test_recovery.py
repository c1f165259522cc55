"""Daemons that are killed and come back: what was acknowledged is still there, on all nodes at one
step, and training goes on from it with the bits of an undisturbed run."""

import random
import threading
import time

import luwu
import pytest
from durable_training import Oracle, Trainer, job_of
from programs import luwuctl


@pytest.fixture
def durable_cluster(start_cluster):
    def start(nodes=2, **options):
        return start_cluster(nodes=nodes, storage=True, **options)

    return start


def state_of(cluster, job):
    """State and detail of the job by node."""
    found = {}
    for node in luwuctl(cluster.endpoints, "jobs")["nodes"]:
        for entry in node["jobs"]:
            if entry["name"] == job:
                found[node["name"]] = entry["state"]
    return found


def restart(cluster, *nodes):
    for node in nodes:
        cluster.kill(node)
    for node in nodes:
        cluster.start(node)


@pytest.mark.parametrize("durability", ["logged", "synced"])
def test_whole_cluster_restarts_between_steps(durable_cluster, durability):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("whole", durability=durability), Oracle())
    for _ in range(4):
        assert trainer.train_step().durability == durability
    restart(cluster, 0, 1)
    with pytest.raises(luwu.SessionLostError):
        trainer.train_step()
    assert trainer.resume() == 4
    trainer.check()
    trainer.train_until(7)
    trainer.check()


@pytest.mark.parametrize("victim", [0, 1])
def test_one_node_restarts_and_all_go_back_with_it(durable_cluster, victim):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("one"), Oracle())
    trainer.train_until(3)
    restart(cluster, victim)
    with pytest.raises(luwu.RolledBackError) as caught:
        trainer.train_step()
    assert caught.value.step == 3
    assert "rolled back to step 3" in str(caught.value)
    assert "optimizer.resume()" in str(caught.value)
    assert trainer.resume() == 3
    trainer.train_until(6)
    trainer.check()


def test_points_every_few_steps_lose_at_most_those_in_between(durable_cluster):
    cluster = durable_cluster(nodes=2)
    job = job_of("every-4", durable_every=4, durability="synced")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    reached = []
    for _ in range(10):
        reached.append(trainer.train_step().durability)
    assert [step + 1 for step, level in enumerate(reached) if level == "synced"] == [4, 8]
    restart(cluster, 0, 1)
    assert trainer.resume() == 8
    trainer.train_until(13)
    trainer.check()


def test_points_in_the_background_are_at_most_two_intervals_old(durable_cluster):
    cluster = durable_cluster(nodes=2)
    job = job_of("background", durable_every=3, durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    for _ in range(11):  # a point may be there before its commit is answered
        assert trainer.train_step().durability in ("memory", "synced")
    restart(cluster, 0, 1)
    step = trainer.resume()
    assert step % 3 == 0 and 11 - 6 <= step <= 11
    trainer.train_until(14)
    trainer.check()


def test_without_points_a_job_ends_with_its_daemons(durable_cluster):
    cluster = durable_cluster(nodes=1)
    trainer = Trainer(
        cluster.endpoints, job_of("fleeting", durable_every=0, durability="memory"), Oracle()
    )
    trainer.train_until(2)
    restart(cluster, 0)
    assert state_of(cluster, "fleeting") == {}
    with pytest.raises(luwu.JobFailedError, match="not kept"):
        trainer.session.reopen(20.0)


def test_job_that_needs_a_data_directory_is_refused_without(start_cluster):
    cluster = start_cluster(nodes=1)
    with pytest.raises(luwu.UnsupportedError, match="--data-dir"):
        Trainer(cluster.endpoints, job_of("homeless"), Oracle())


def test_lost_directory_makes_the_job_lost_and_deletable(durable_cluster):
    import shutil

    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("halved"), Oracle())
    trainer.train_until(2)
    for node in (0, 1):
        cluster.kill(node)
    shutil.rmtree(cluster.data_dir(1))
    cluster.start()
    end = time.monotonic() + 60
    while state_of(cluster, "halved") != {"node0": "lost"}:
        assert time.monotonic() < end, state_of(cluster, "halved")
        time.sleep(0.1)
    with pytest.raises(luwu.JobFailedError, match="node1"):
        trainer.session.reopen(20.0)
    luwu.delete_job(cluster.endpoints, "halved")
    fresh = Trainer(cluster.endpoints, job_of("halved"), Oracle())
    assert fresh.step == 0
    fresh.train_until(2)


def test_waits_for_the_node_that_is_still_down(durable_cluster):
    cluster = durable_cluster(nodes=2)
    trainer = Trainer(cluster.endpoints, job_of("patient"), Oracle())
    trainer.train_until(2)
    for node in (0, 1):
        cluster.kill(node)
    cluster.start(0)
    end = time.monotonic() + 60
    while state_of(cluster, "patient").get("node0") != "recovering":
        assert time.monotonic() < end
        time.sleep(0.1)
    checks = luwuctl(cluster.endpoints, "status")["nodes"][0]["status"]["checks"]
    assert any(check["name"] == "JOB_RECOVERING" for check in checks), checks
    cluster.start(1)
    assert trainer.resume() == 2
    trainer.train_until(4)
    trainer.check()


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(durable_cluster, seed):
    """Also kills during recovery: the next one may come before the last has ended."""
    chance = random.Random(seed)
    cluster = durable_cluster(nodes=3)
    trainer = Trainer(
        cluster.endpoints,
        job_of("random", durability=chance.choice(["logged", "synced"])),
        Oracle(),
    )
    stop = threading.Event()
    kills = []

    def disturb():
        while not stop.wait(chance.uniform(0.05, 0.8)) and len(kills) < 8:
            victims = chance.choice([[0], [1], [2], [0, 1, 2], [1, 2]])
            for node in victims:
                cluster.kill(node)
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0, 0.5))
            for node in victims:
                cluster.start(node)
            kills.append(victims)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        while thread.is_alive():
            trainer.train_until(trainer.step + 1)
    finally:
        stop.set()
        thread.join()
    assert len(kills) == 8
    trainer.train_until(trainer.step + 2)
    trainer.check()
    assert trainer.rollbacks
