"""luwuctl doctor with real daemons: what is wrong gets a finding of its name, at its place."""

import json
import os
import shlex
import socket
import subprocess

import pytest
from cluster import Cluster, free_ports
from programs import LUWUCTL, LUWUD, TIMEOUT_S

OK, FAILURE, USAGE, UNHEALTHY = 0, 1, 2, 3
ERR = "SEVERITY_ERR"
LOW_MEMLOCK_BYTES = 64 << 10


def doctor(*arguments, prefix=()):
    """Exit status and findings."""
    command = [*prefix, LUWUCTL, "-o", "json", "--timeout-ms", "20000", *arguments]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    worst = max(finding["severity"] == ERR for finding in report["findings"])
    assert (report["overall"] == ERR) == worst
    return done.returncode, report["findings"]


def one(findings, where, name, severity="SEVERITY_OK"):
    """The only finding of that name there; it must have that severity."""
    found = [f for f in findings if (f["where"], f["name"]) == (where, name)]
    assert len(found) == 1, findings
    assert found[0]["severity"] == severity, found[0]
    assert bool(found[0]["hint"]) == (severity != "SEVERITY_OK"), found[0]
    return found[0]


def without_memlock():
    """A prefix under which a program may lock 64 KiB, whoever runs it."""
    prefix = ["prlimit", f"--memlock={LOW_MEMLOCK_BYTES}"]
    # The limit does not hold for who has the capability; root gets what the bounding set lets it.
    return prefix + (["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else [])


@pytest.fixture
def luwud_without_memlock(tmp_path):
    """A luwud that runs under the low limit."""
    script = tmp_path / "luwud-low"
    words = " ".join(shlex.quote(str(word)) for word in [*without_memlock(), LUWUD])
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)
    return script


def test_a_healthy_cluster(start_cluster):
    cluster = start_cluster(nodes=2, storage=True)
    status, findings = doctor("doctor", "-e", cluster.nodes[0].control)
    assert status == OK, findings
    for node, peer in (("node0", "node1"), ("node1", "node0")):
        for name in ("NODE", "DATA_REACH", "STORAGE_WRITES", "MEMORY_BUDGET", "OPEN_FILES"):
            one(findings, node, name)
        assert peer in one(findings, node, "PEER_CONTROL")["summary"]
        assert peer in one(findings, node, "PEER_DATA")["summary"]
    for name in ("NODE_LIST", "VERSION", "CLOCK"):
        one(findings, "cluster", name)
    assert {f["name"] for f in findings if f["where"] == "here"} >= {"MEMLOCK", "RDMA"}


def test_the_table_has_every_fix(start_cluster):
    cluster = start_cluster(nodes=2)
    cluster.kill(1)
    done = subprocess.run(
        [str(LUWUCTL), "-e", cluster.nodes[0].control, "--timeout-ms", "20000", "doctor"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == UNHEALTHY, done.stderr
    assert " ERR, " in done.stdout.splitlines()[0]
    assert "fix: start luwud there" in done.stdout


def test_a_dead_node_is_found_by_luwuctl_and_by_its_peers(start_cluster):
    cluster = start_cluster(nodes=3)
    cluster.kill(1)
    status, findings = doctor("doctor", "-e", cluster.nodes[0].control)
    assert status == UNHEALTHY
    one(findings, "node1", "NODE", ERR)
    one(findings, "node1", "DATA_REACH", ERR)
    for node in ("node0", "node2"):
        one(findings, node, "NODE")
        for name in ("PEER_CONTROL", "PEER_DATA"):
            wrong = [f for f in findings if (f["where"], f["name"]) == (node, name)]
            assert len(wrong) == 2
            for finding in wrong:
                about_it = "node1 at" in finding["summary"]
                assert (finding["severity"] == ERR) == about_it, finding


def test_nobody_answers(start_cluster):
    cluster = start_cluster(nodes=1)
    cluster.stop()
    status, findings = doctor("doctor", "-e", cluster.nodes[0].control)
    assert status == FAILURE
    one(findings, cluster.nodes[0].control, "NODE", ERR)


def test_different_node_lists(start_cluster):
    cluster = start_cluster(nodes=2)
    cluster.stop(1)
    text = cluster.config_text(1)
    assert text.count("weight = 1") == 2
    config = cluster.folder / "node1" / "luwud.toml"
    config.write_text(text.replace("weight = 1", "weight = 2", 1))
    cluster.start(1)
    status, findings = doctor("doctor", "-e", cluster.nodes[0].control)
    assert status == UNHEALTHY
    summary = one(findings, "cluster", "NODE_LIST", ERR)["summary"]
    assert "at node0" in summary and "at node1" in summary


def test_names_that_are_exchanged_between_two_nodes(start_cluster):
    """Daemons that swapped places answer, but are not who they are taken for."""
    cluster = start_cluster(nodes=2)
    text = cluster.config_text(1)
    config = cluster.folder / "node1" / "luwud.toml"
    cluster.stop(1)
    swapped = text.replace('"node0"', '"nodeX"').replace('"node1"', '"node0"')
    config.write_text(swapped.replace('"nodeX"', '"node1"'))
    cluster.start(1)
    status, findings = doctor("doctor", "-e", cluster.nodes[0].control)
    assert status == UNHEALTHY
    assert "answered by node0" in one(findings, "node1", "NODE", ERR)["summary"]
    one(findings, "cluster", "NODE_LIST", ERR)


def test_low_memlock_of_a_daemon(luwud_without_memlock):
    with Cluster(luwud_without_memlock, nodes=1, memory="64MiB") as cluster:
        status, findings = doctor("doctor", "-e", cluster.endpoints)
        assert status == OK  # without an RDMA device it is a warning
        finding = one(findings, "node0", "MEMLOCK", "SEVERITY_WARN")
        assert "64 KiB" in finding["summary"] or "64.0 KiB" in finding["summary"]
        assert "64 MiB" in finding["summary"] or "64.0 MiB" in finding["summary"]
        assert "LimitMEMLOCK" in finding["hint"]


CONFIG = """\
[node]
name = "a"
[memory]
budget = "64MiB"
[storage]
path = "{path}"
[rdma]
use = "{rdma}"
[[nodes]]
name = "a"
control = "127.0.0.1:{control}"
data = "127.0.0.1:{data}"
shm = "{shm}"
"""


@pytest.fixture
def write_config(tmp_path):
    def write(**values):
        control, data = free_ports(2)
        defaults = {"control": control, "data": data, "shm": tmp_path / "a.sock"}
        defaults.update(path=tmp_path / "data", rdma="auto")
        path = tmp_path / "luwud.toml"
        path.write_text(CONFIG.format(**{**defaults, **values}))
        return path

    return write


def local(config, **options):
    return doctor("doctor", "--local", "--config", config, **options)


def test_a_host_before_its_daemon_is_started(write_config):
    status, findings = local(write_config())
    assert status == OK, findings
    for name in ("CONFIG", "CONTROL_PORT", "DATA_PORT", "SHM_SOCKET", "MEMORY_BUDGET"):
        one(findings, "here", name)
    assert all(f["where"] == "here" for f in findings)


def test_a_host_whose_daemon_runs(start_cluster):
    cluster = start_cluster(nodes=1, storage=True)
    status, findings = local(cluster.folder / "node0" / "luwud.toml")
    assert status == OK, findings
    pid = f"luwud (pid {cluster.daemons[0].pid})"
    assert pid in one(findings, "here", "CONTROL_PORT")["summary"]
    assert pid in one(findings, "here", "DATA_PORT")["summary"]
    assert "listened on" in one(findings, "here", "SHM_SOCKET")["summary"]
    assert cluster.daemons[0].alive()


def test_a_port_that_another_program_has(write_config):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, findings = local(write_config(data=taken.getsockname()[1]))
    assert status == UNHEALTHY
    assert f"(pid {os.getpid()})" in one(findings, "here", "DATA_PORT", ERR)["summary"]
    one(findings, "here", "CONTROL_PORT")


def test_low_memlock_of_this_host(write_config):
    status, findings = local(write_config(), prefix=without_memlock())
    assert status == OK
    one(findings, "here", "MEMLOCK", "SEVERITY_WARN")
    status, findings = local(write_config(rdma="on"), prefix=without_memlock())
    assert status == UNHEALTHY
    one(findings, "here", "MEMLOCK", ERR)
    one(findings, "here", "RDMA", ERR)  # forced, and there is no device


def test_few_open_files(write_config):
    status, findings = local(write_config(), prefix=["prlimit", "--nofile=512"])
    assert status == UNHEALTHY
    one(findings, "here", "OPEN_FILES", ERR)


def test_a_data_directory_that_is_a_file(write_config, tmp_path):
    (tmp_path / "file").write_text("")
    status, findings = local(write_config(path=tmp_path / "file"))
    assert status == UNHEALTHY
    one(findings, "here", "DATA_DIRECTORY", ERR)


def test_a_configuration_that_cannot_be_read(tmp_path):
    status, findings = local(tmp_path / "none.toml")
    assert status == UNHEALTHY
    one(findings, "here", "CONFIG", ERR)


def test_a_configuration_needs_local():
    done = subprocess.run(
        [str(LUWUCTL), "doctor", "--config", "x"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == USAGE
    assert "--local" in done.stderr
