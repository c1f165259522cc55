"""Daemons that start, stop and die, with and without work in progress."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import cluster as cluster_module
import luwu
import numpy as np
import pytest
from programs import LUWUD, health, luwuctl
from training import small_job, train_a_little

PATIENCE_S = 30
OWNER = Path(__file__).with_name("daemon_owner.py")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_termination_signal_ends_an_idle_daemon_cleanly(start_cluster, number):
    cluster = start_cluster(nodes=1)
    daemon = cluster.daemons[0]
    daemon.send_signal(number)
    assert daemon.wait() == 0
    log = daemon.log()
    assert f"node_stopping node=node0 reason={number.name}" in log
    assert log.splitlines()[-1].endswith("node_stopped node=node0")


def test_hangup_ends_a_daemon_without_a_file_to_read_again(tmp_path):
    shm = tmp_path / "shm.sock"
    daemon = cluster_module.Daemon(
        [LUWUD, "--listen", "127.0.0.1:0", "--memory", "64MiB", "--shm", shm], tmp_path
    )
    daemon.start()
    daemon.send_signal(signal.SIGHUP)
    assert daemon.wait() == 0
    assert "node_stopping node=local reason=SIGHUP" in daemon.log()


def test_a_second_signal_ends_a_daemon_that_is_stopping_at_once(start_cluster):
    cluster = start_cluster(nodes=1)
    daemon = cluster.daemons[0]
    daemon.send_signal(signal.SIGSTOP)  # so that both are there when it looks
    daemon.send_signal(signal.SIGTERM)
    daemon.send_signal(signal.SIGINT)
    daemon.send_signal(signal.SIGCONT)
    assert daemon.wait() == 3
    last = daemon.log().splitlines()[-1]
    # Which of the two was looked at first is the kernel's choice.
    assert 'stop_forced reason="SIG' in last and 'while stopping"' in last


@pytest.mark.parametrize("thread_ends", [False, True])
def test_daemons_end_with_the_process_that_started_them(tmp_path, thread_ends):
    """Even by SIGKILL; and not before it, when only the thread that started them has ended."""
    command = [sys.executable, OWNER, LUWUD, tmp_path, "thread" if thread_ends else "main"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as owner:
        try:
            started = json.loads(owner.stdout.readline())
            watches = [os.pidfd_open(pid) for pid in started["pids"]]
            assert len(watches) == 2
            for node in ("node0", "node1"):
                assert health(started["endpoint"], node) == "SERVING"
        finally:
            owner.kill()
        for watch in watches:
            assert select.select([watch], [], [], PATIENCE_S)[0], "it outlives its owner"
            os.close(watch)


def test_a_port_that_is_taken_in_between_is_replaced(monkeypatch, start_cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = cluster_module.free_ports
        choices = iter([[*free(3), taken.getsockname()[1]]])
        monkeypatch.setattr(
            cluster_module, "free_ports", lambda count: next(choices, None) or free(count))
        cluster = start_cluster(nodes=2)
    train_a_little(cluster.endpoints, "tcp")


def test_a_daemon_can_be_started_again_at_once(start_cluster):
    cluster = start_cluster(nodes=1)
    for _ in range(3):
        train_a_little(cluster.endpoints, "shm")
        assert cluster.stop() == 0
        cluster.start()


def test_a_killed_daemon_leaves_nothing_that_hinders_the_next(start_cluster):
    cluster = start_cluster(nodes=1)
    assert cluster.kill(0) == -signal.SIGKILL
    cluster.start(0)  # over the stale shm socket
    train_a_little(cluster.endpoints, "shm")


class Trainer(threading.Thread):
    """One worker that trains until an error ends it."""

    def __init__(self, endpoints: str, job: luwu.JobSpec, rank: int):
        super().__init__(daemon=True)
        self.session = luwu.Session(endpoints, job, rank, node_timeout_s=2)
        self.job = job
        self.running = threading.Event()
        self.error = None

    def run(self) -> None:
        gradient = np.ones(1000, np.float32)
        step = 0
        try:
            while True:
                self.session.begin_step(step, timeout_s=PATIENCE_S)
                for layer in range(2):
                    self.session.fetch(layer, step, timeout_s=PATIENCE_S)
                    self.session.push(layer, gradient, timeout_s=PATIENCE_S)
                self.session.commit(step, timeout_s=PATIENCE_S)
                step += 1
                if step == 3:
                    self.running.set()
        except luwu.LuwuError as error:
            self.error = error


@pytest.mark.parametrize("victim", [0, 1])
def test_sigterm_under_load_ends_cleanly_and_every_call_of_the_workers_ends(cluster, victim):
    job = small_job(world_size=2)
    trainers = [Trainer(cluster.endpoints, job, rank) for rank in range(2)]
    trainers[0].session.finish_load(allow_missing=True)
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        assert trainer.running.wait(PATIENCE_S), trainer.error
    assert cluster.stop(victim) == 0
    for trainer in trainers:
        trainer.join(PATIENCE_S)
        assert not trainer.is_alive()
        assert isinstance(trainer.error, luwu.LuwuError)
    # Each of them heard of the node: by its farewell, or by its silence.
    messages = [str(trainer.error) for trainer in trainers]
    assert all(f"node{victim}" in message for message in messages), messages
    for trainer in trainers:
        trainer.session.close()
    assert cluster.stop(1 - victim) == 0


def test_a_commit_that_waits_for_another_rank_ends_when_the_daemon_stops(start_cluster):
    cluster = start_cluster(nodes=1)
    job = small_job(world_size=2)
    with luwu.Session(cluster.endpoints, job, 0, node_timeout_s=1) as first:
        with luwu.Session(cluster.endpoints, job, 1):
            first.finish_load(allow_missing=True)
            first.begin_step(0)
            for layer in range(2):
                first.close_layer(layer)
            errors = []
            under_way = threading.Event()

            def commit() -> None:
                under_way.set()
                try:
                    first.commit(0, timeout_s=600)
                except luwu.LuwuError as error:
                    errors.append(error)

            waiter = threading.Thread(target=commit, daemon=True)
            waiter.start()
            assert under_way.wait(PATIENCE_S)
            assert cluster.stop(0) == 0
            waiter.join(PATIENCE_S)
            assert not waiter.is_alive()
            assert len(errors) == 1 and "node0" in str(errors[0])


def test_health_follows_the_life_of_each_daemon(cluster):
    control = [node.control for node in cluster.nodes]
    assert health(control[0], "node0") == health(control[0], "node1")
    serving = health(control[0], "node0")
    assert serving is not None
    cluster.stop(1)
    assert health(control[0], "node0") == serving
    assert health(control[0], "node1") != serving
    cluster.start(1)
    assert health(control[0], "node1") == serving


def test_status_shows_jobs_and_workers(cluster):
    job = small_job()
    with luwu.Session(cluster.endpoints, job, 0) as session:
        session.finish_load(allow_missing=True)
        session.wait_loaded()  # every board shows it, so every daemon has its link up
        answer = luwuctl(cluster.nodes[0].control, "status")
        assert answer["overall"] == "SEVERITY_OK"
        assert [node["name"] for node in answer["nodes"]] == ["node0", "node1"]
        for node, daemon in zip(answer["nodes"], cluster.daemons):
            assert node["error"] is None
            assert node["status"]["pid"] == daemon.pid
            (shown,) = node["status"]["jobs"]
            assert (shown["name"], shown["state"]) == (job.name, "training")
            (worker,) = shown["workers"]
            assert worker["transport"] == ("shm" if node["name"] == "node0" else "tcp")
