"""What luwud tells a service manager: a socket of this test's stands in for systemd's."""

import os
import signal
import socket
import time

import pytest
from durable_training import Oracle, Trainer, job_of

PATIENCE_S = 60.0


class Manager:
    """The receiving end of sd_notify(3)."""

    def __init__(self, folder, watchdog_ms=0):
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(0.1)
        self.environment = {**os.environ, "NOTIFY_SOCKET": self.path}
        if watchdog_ms:
            self.environment["WATCHDOG_USEC"] = str(watchdog_ms * 1000)
        self.lines = []

    def listen_until(self, found, timeout_s=PATIENCE_S):
        """Until `found(lines)`, over everything that has been told so far."""
        end = time.monotonic() + timeout_s
        while not found(self.lines):
            assert time.monotonic() < end, f"not told in time; told: {self.lines}"
            try:
                self.lines += self._socket.recv(65536).decode().split("\n")
            except TimeoutError:
                pass
        return self.lines

    def forget(self):
        """What was told so far."""
        try:
            while self._socket.recv(65536):
                pass
        except TimeoutError:
            self.lines.clear()

    def await_line(self, line):
        self.listen_until(lambda lines: line in lines)


@pytest.fixture
def managed(start_cluster, tmp_path):
    """managed(cluster options...) -> (cluster, manager); node0 has a service manager."""

    def start(failpoints="", watchdog_ms=0, **options):
        cluster = start_cluster(nodes=1, **options)
        manager = Manager(tmp_path, watchdog_ms)
        restart(cluster, manager, failpoints)
        return cluster, manager

    return start


def restart(cluster, manager, failpoints=""):
    cluster.kill(0)
    manager.forget()
    cluster.daemons[0].env = {**manager.environment, "LUWU_FAILPOINTS": failpoints or "none=off"}
    cluster.start(0)


def test_ready_follows_the_start_and_stopping_the_signal(managed):
    cluster, manager = managed()
    manager.await_line("READY=1")
    assert manager.lines[0].startswith("STATUS=Starting"), manager.lines
    manager.listen_until(lambda lines: any("jobs served: 0" in line for line in lines))
    assert cluster.stop(0) == 0
    manager.await_line("STOPPING=1")


def test_ready_is_said_after_what_was_on_disk_is_served_again(managed):
    cluster, manager = managed(storage=True)
    trainer = Trainer(cluster.endpoints, job_of("kept"), Oracle())
    trainer.train_until(3)
    restart(cluster, manager, "persist.rollback.before=delay(4000)")
    manager.listen_until(lambda lines: any("kept: it is going back" in line for line in lines))
    assert "READY=1" not in manager.lines
    manager.await_line("READY=1")
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in manager.lines)
    assert trainer.resume() == 3


def test_node_that_waits_for_others_is_ready_and_names_them(start_cluster, tmp_path):
    cluster = start_cluster(nodes=2, storage=True)
    trainer = Trainer(cluster.endpoints, job_of("half"), Oracle())
    trainer.train_until(2)
    for node in (0, 1):
        cluster.kill(node)
    manager = Manager(tmp_path)
    cluster.daemons[0].env = manager.environment
    cluster.start(0)
    manager.await_line("READY=1")
    manager.listen_until(lambda lines: any("half: waiting for node node1" in e for e in lines))
    cluster.start(1)
    assert trainer.resume() == 2


def test_watchdog_is_fed_while_the_loops_move(managed):
    _, manager = managed(watchdog_ms=2000)
    manager.listen_until(lambda lines: lines.count("WATCHDOG=1") >= 4)


def test_watchdog_is_not_fed_when_an_update_thread_is_stuck(managed):
    cluster, manager = managed("step.update=delay(6000)@1", watchdog_ms=1000)
    job = job_of("stuck", durable_every=0, durability="memory")
    trainer = Trainer(cluster.endpoints, job, Oracle())
    manager.await_line("READY=1")
    manager.await_line("WATCHDOG=1")
    trainer.train_until(1)
    log = cluster.daemons[0].log_path.read_text()
    assert "LOOP_STUCK" in log and "luwu-update-" in log
    manager.forget()
    manager.await_line("WATCHDOG=1")  # it moves again


def test_reload_reads_the_file_again_and_keeps_what_is_wrong_out(managed):
    cluster, manager = managed()
    manager.await_line("READY=1")
    daemon = cluster.daemons[0]
    config = daemon.log_path.with_name("luwud.toml")
    good = config.read_text()

    def reload(text):
        config.write_text(text)
        manager.forget()
        os.kill(daemon.pid, signal.SIGHUP)
        manager.listen_until(lambda lines: "READY=1" in lines and "RELOADING=1" in lines)
        assert any(line.startswith("MONOTONIC_USEC=") for line in manager.lines)
        return daemon.log_path.read_text()

    assert "reload_refused" in reload(good + "\nnonsense = 1\n")
    assert "reloaded" in reload(good.replace('level = "info"', 'level = "debug"'))
    assert "reload_incomplete" not in daemon.log_path.read_text()
    assert "reload_incomplete" in reload(good.replace("64MiB", "65MiB"))
    assert daemon.alive()
    config.write_text(good)
