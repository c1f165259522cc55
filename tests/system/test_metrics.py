"""The metrics page of real daemons, against what luwuctl says of them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from cluster import free_ports, spawn
from durable_training import Oracle, Trainer, job_of
from programs import SOURCE, luwuctl, luwud
from training import train_a_little

PATIENCE_S = 30.0
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def scrape(address):
    """{name{labels}: value}."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    samples = {}
    for line in lines:
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            samples[f"{name}{{{labels}}}" if labels else name] = float(value)
    return samples


def await_page(address, found):
    """The page is read once a second by the daemon itself."""
    end = time.monotonic() + PATIENCE_S
    while not found(page := scrape(address)):
        assert time.monotonic() < end, page
        time.sleep(0.1)
    return page


def test_the_page_says_what_the_status_says(start_cluster):
    cluster = start_cluster(nodes=2, storage=True, metrics=True)
    trainer = Trainer(cluster.endpoints, job_of("seen"), Oracle())
    trainer.train_until(5)
    nodes = luwuctl(cluster.endpoints, "status")["nodes"]
    for index, node in enumerate(nodes):
        job = node["status"]["jobs"][0]
        assert job["applied_steps"] == 5
        page = await_page(
            cluster.metrics_address(index),
            lambda page: page.get('luwu_job_step{job_name="seen"}') == 5,
        )
        assert page['luwu_job_steps_total{job_name="seen",outcome="applied"}'] == 5
        assert page['luwu_job_steps_total{job_name="seen",outcome="skipped"}'] == 0
        assert page['luwu_job_step_duration_seconds_count{job_name="seen"}'] == 5
        assert page['luwu_job_updates_total{job_name="seen"}'] == job["updates"]
        pushed = page['luwu_worker_pushed_bytes_total{job_name="seen",rank="0"}']
        assert pushed == job["workers"][0]["pushed_bytes"]
        assert page['luwu_job_memory_bytes{job_name="seen",part="served"}'] == job["served_bytes"]
        assert page["luwu_memory_used_bytes"] == node["status"]["memory_used_bytes"]
        assert page["luwu_storage_budget_bytes"] > 0
        assert page['luwu_checks{check="WORKER_LOST",severity="err"}'] == 0
        version = node["status"]["version"]
        assert any(f'node="node{index}"' in key and f'version="{version}"' in key for key in page)
    trainer.close()


WORKER = """
import sys, threading
sys.path[:0] = {paths!r}
from durable_training import Oracle, Trainer, job_of
job = job_of("lost", durable_every=0, durability="memory")
trainer = Trainer({endpoints!r}, job, Oracle())
trainer.train_until(1)
print("trained", flush=True)
threading.Event().wait()
"""


def test_a_lost_worker_is_on_the_page_and_the_check_tells_since_when(start_cluster):
    cluster = start_cluster(nodes=1, metrics=True, heartbeat_ms=100, lease_ms=400)
    before_ms = time.time() * 1000
    code = WORKER.format(paths=sys.path, endpoints=cluster.endpoints)
    worker = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout.readline() == "trained\n"
        worker.send_signal(signal.SIGSTOP)  # its heartbeats stop; its links stay
        page = await_page(
            cluster.metrics_address(0),
            lambda page: page['luwu_checks{check="WORKER_LOST",severity="err"}'] == 1,
        )
        assert page['luwu_job_workers{job_name="lost",state="lost"}'] == 1
        assert page['luwu_worker_lease_left_seconds{job_name="lost",rank="0"}'] == 0
        (check,) = luwuctl(cluster.endpoints, "status")["nodes"][0]["status"]["checks"]
        assert check["name"] == "WORKER_LOST"
        assert before_ms < check["since_unix_ms"] <= time.time() * 1000
    finally:
        worker.kill()
        worker.wait()


def test_the_page_of_a_daemon_that_is_stuck_answers_and_tells_it(start_cluster):
    """The housekeeping thread stands still for 6 s, holding up what it does for status too."""
    stuck = {**os.environ, "LUWU_FAILPOINTS": "house.tick=delay(6000)@60"}
    cluster = start_cluster(nodes=1, metrics=True, env=stuck)

    def age(page):
        return time.time() - page["luwu_snapshot_timestamp_seconds"]

    address = cluster.metrics_address(0)
    await_page(address, lambda page: age(page) > 3)
    await_page(address, lambda page: age(page) < 2)


def test_a_daemon_survives_what_is_no_scrape(start_cluster):
    cluster = start_cluster(nodes=1, metrics=True)
    host, port = cluster.metrics_address(0).split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(30)]
    for number, connection in enumerate(idle):
        try:
            connection.sendall([b"\x16\x03\x01\xff\x00", b"GET /" + b"x" * 30000, b""][number % 3])
        except OSError:
            pass  # it was closed
    for connection in idle:
        connection.close()
    assert scrape(cluster.metrics_address(0))['luwu_jobs{state="training"}'] == 0
    train_a_little(cluster.endpoints, "tcp")


def test_no_page_without_the_key(start_cluster):
    cluster = start_cluster(nodes=1)
    assert cluster.daemons[0].ready["metrics_port"] == 0


def test_an_address_that_others_can_reach_is_refused(tmp_path):
    config = tmp_path / "luwud.toml"
    sample = (SOURCE / "deploy" / "config" / "luwud.toml").read_text()
    config.write_text(sample.replace('listen = ""', 'listen = "0.0.0.0:9464"'))
    refused = luwud("--config", config, "--check-config")
    assert refused.returncode == 2
    assert "metrics.listen" in refused.stderr and "not a loopback address" in refused.stderr


def test_an_address_in_use_ends_the_start_and_is_named(tmp_path, start_cluster):
    cluster = start_cluster(nodes=1, metrics=True)
    taken = cluster.metrics_address(0)
    control, data = free_ports(2)
    config = tmp_path / "luwud.toml"
    config.write_text(
        f'[node]\nname = "a"\n[memory]\nbudget = "64MiB"\n[metrics]\nlisten = "{taken}"\n'
        f'[[nodes]]\nname = "a"\ncontrol = "127.0.0.1:{control}"\ndata = "127.0.0.1:{data}"\n'
    )
    failed = luwud("--config", config)
    assert failed.returncode == 1
    assert taken in failed.stderr and "metrics page" in failed.stderr
