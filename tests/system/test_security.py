"""TLS and roles with whole daemons: training, luwuctl, renewed certificates, what the logs hold.

Who may make which call is tests/unit/service/access_matrix_test.cc's.
"""

import dataclasses
import json
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.request

import luwu
import numpy as np
import pytest
from cluster import Cluster
from programs import LUWUCTL, LUWUD
from secure_cluster import LOCAL_GROUP, REFRESH_S, SecureCluster, make_certificates
from training import SGD, small_job

ROTATIONS = 3
MARKER = np.frombuffer(b"SECRETWT" * 500, dtype=np.float32)  # 1000 floats


@pytest.fixture
def secure():
    with SecureCluster(nodes=2, shm=[True, False], memory="64MiB") as running:
        yield running


def options_of(cluster, name):
    names = cluster.identity(name)
    return {
        "tls_ca": names["LUWU_TLS_CA"],
        "tls_certificate": names["LUWU_TLS_CERTIFICATE"],
        "tls_key": names["LUWU_TLS_KEY"],
    }


def train(session, first_step, steps, gradient):
    for step in range(first_step, first_step + steps):
        session.begin_step(step)
        for index in range(2):
            session.fetch(index, step)
            session.push(index, gradient)
        assert session.commit(step).applied


def masters_after_training(cluster, name, tls):
    gradient = np.linspace(-1, 1, 1000, dtype=np.float32)
    with luwu.Session(cluster.endpoints, small_job(name), 0, **tls) as session:
        for index in range(2):
            session.load(index, np.arange(1000, dtype=np.float32) + 1000 * index)
        session.finish_load()
        train(session, 0, 3, gradient)
        return [session.read(index).tobytes() for index in range(2)]


def test_training_with_tls_gives_the_same_bits(secure):
    with_tls = masters_after_training(secure, "team-a", options_of(secure, "trainer"))
    with Cluster(LUWUD, nodes=2, shm=[True, False], memory="64MiB") as plain:
        assert masters_after_training(plain, "team-a", {}) == with_tls
    assert "access_denied" not in secure.logs()


def test_the_environment_names_the_certificate(secure, monkeypatch):
    for key, value in secure.identity("trainer").items():
        monkeypatch.setenv(key, value)
    masters_after_training(secure, "team-a", {})
    luwu.delete_job(secure.endpoints, "team-a")


def test_a_trainer_keeps_to_its_jobs(secure):
    tls = options_of(secure, "trainer")
    with pytest.raises(luwu.errors.AccessError, match="do not include 'other'"):
        luwu.Session(secure.endpoints, small_job("other"), 0, **tls)
    assert 'job="other"' in secure.logs()


def luwuctl_at(socket_path, *arguments, user=()):
    """Without any certificate; `user`: a command before it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LUWU_TLS")}
    return subprocess.run([*user, str(LUWUCTL), "-e", f"unix:{socket_path}", *arguments],
                          capture_output=True, text=True, timeout=60, env=environment)


def test_users_of_the_host_need_no_certificate():
    with SecureCluster(nodes=1, shm=[True], memory="64MiB") as secure:
        path = secure.local_socket(0)
        with luwu.Session(f"unix:{path}", small_job("any"), 0) as session:
            for index in range(2):
                session.load(index, np.zeros(1000, np.float32))
            session.finish_load()
            train(session, 0, 2, np.ones(1000, np.float32))
        done = luwuctl_at(path, "-o", "json", "status")
        assert done.returncode == 0, done.stdout + done.stderr
        node = json.loads(done.stdout)["nodes"][0]
        assert [job["name"] for job in node["status"]["jobs"]] == ["any"]
        assert luwuctl_at(path, "health").returncode == 0
        assert luwuctl_at(path, "doctor").stdout
        done = luwuctl_at(path, "delete", "any")
        assert done.returncode == 0, done.stderr
        assert "access_denied" not in secure.logs()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
def test_other_users_of_the_host_have_what_their_groups_have():
    with SecureCluster(nodes=1, shm=[True], memory="64MiB") as secure:
        secure.certificates.chmod(0o711)
        path = secure.local_socket(0)
        stranger = ["setpriv", "--reuid=54001", "--regid=54001", "--clear-groups"]
        member = ["setpriv", "--reuid=54002", "--regid=54002", f"--groups={LOCAL_GROUP}"]
        done = luwuctl_at(path, "status", user=member)
        assert done.returncode == 0, done.stdout + done.stderr
        done = luwuctl_at(path, "delete", "any", user=member)
        assert done.returncode == 1 and "takes a trainer" in done.stderr, done.stderr
        assert f'access_denied identity="gid:{LOCAL_GROUP}"' in secure.logs()
        done = luwuctl_at(path, "status", user=stranger)
        assert done.returncode == 1, done.stdout
        assert 'access_denied identity="uid:54001"' in secure.logs()


def test_limits_of_an_identity():
    """On both nodes; the metrics and the status tell what it has."""
    with SecureCluster(nodes=2, shm=[True, False], memory="64MiB",
                       trainer_limits='sessions_max = 1\nmemory_max = "24MiB"\n') as secure:
        tls = options_of(secure, "trainer")
        with luwu.Session(secure.endpoints, small_job("team-a"), 0, **tls):
            with pytest.raises(luwu.errors.ResourceExhaustedError, match="raise sessions_max in"):
                luwu.Session(secure.endpoints, small_job("team-b"), 0, **tls)
            status = json.loads(secure.luwuctl("operator", "-o", "json", "status").stdout)
            for node in status["nodes"]:
                uses = {use["identity"]: use for use in node["status"]["identities"]}
                trainer = uses["spiffe://luwu/trainer"]
                assert (trainer["sessions"], trainer["sessions_max"]) == (1, 1)
                assert trainer["memory_bytes_max"] == 24 << 20
                assert 0 < trainer["memory_bytes"] <= 24 << 20
                assert uses["spiffe://luwu/operator"]["sessions"] == 0
        with luwu.Session(secure.endpoints, small_job("team-a"), 0, **tls):
            pass
        big = dataclasses.replace(small_job("team-big"), overflow_bytes=32 << 20)
        with pytest.raises(luwu.errors.ResourceExhaustedError, match="raise memory_max in"):
            luwu.Session(secure.endpoints, big, 0, **tls)
        assert "quota_refused" in secure.logs()


def test_without_a_certificate_the_error_says_so(secure):
    with pytest.raises(luwu.errors.LuwuError) as caught:
        luwu.Session(secure.endpoints, small_job("team-a"), 0, node_timeout_s=0.5)
    assert "TLS" in str(caught.value)
    done = secure.luwuctl(None, "status")
    assert done.returncode == 1
    assert "TLS" in done.stderr + done.stdout


def test_luwuctl_does_what_its_role_may(secure):
    masters_after_training(secure, "team-a", options_of(secure, "trainer"))
    for name in ("observer", "trainer", "operator"):
        done = secure.luwuctl(name, "-o", "json", "status")
        assert done.returncode == 0, done.stderr
        jobs = json.loads(done.stdout)["nodes"][0]["status"]["jobs"]
        assert [job["name"] for job in jobs] == ["team-a"]
        assert secure.luwuctl(name, "health").returncode == 0
    for name in ("observer", "daemon"):
        done = secure.luwuctl(name, "delete", "team-a")
        assert done.returncode == 1
        assert "takes a trainer" in done.stderr, done.stderr
    assert secure.luwuctl("operator", "doctor", "-o", "json").stdout
    done = secure.luwuctl("operator", "delete", "team-a")
    assert done.returncode == 0, done.stderr


def test_the_file_at_fault_is_named(secure):
    done = secure.luwuctl("operator", "--tls-key", "/nowhere.pem", "status")
    assert done.returncode == 2
    assert "/nowhere.pem" in done.stderr
    with pytest.raises(luwu.errors.LuwuError, match="/nowhere.pem"):
        tls = {**options_of(secure, "trainer"), "tls_ca": "/nowhere.pem"}
        luwu.Session(secure.endpoints, small_job("team-a"), 0, **tls)


def test_a_daemon_with_a_wrong_key_does_not_start(secure):
    config = secure.folder / "wrong.toml"
    text = secure.config_text(0).replace("daemon.pem\"\nca", "trainer.pem\"\nca")
    config.write_text(text)
    secure.stop(0)
    done = subprocess.run([str(LUWUD), "--config", str(config)], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode != 0
    assert "belongs to another certificate" in done.stderr


def serial_of(cluster):
    """Of the certificate that a new connection is shown."""
    names = cluster.identity("observer")
    context = ssl.create_default_context(cafile=names["LUWU_TLS_CA"])
    context.load_cert_chain(names["LUWU_TLS_CERTIFICATE"], names["LUWU_TLS_KEY"])
    context.set_alpn_protocols(["h2"])
    host, port = cluster.nodes[0].control.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            return connection.getpeercert()["serialNumber"]


def test_certificates_are_renewed_under_load_without_a_failed_call(secure):
    """A trainer keeps its connections, and luwuctl makes new ones all the time."""
    stop, failures, calls = threading.Event(), [], []
    gradient = np.linspace(-1, 1, 1000, dtype=np.float32)

    def train_on():
        try:
            with luwu.Session(secure.endpoints, small_job("team-a"), 0,
                              **options_of(secure, "trainer")) as session:
                for index in range(2):
                    session.load(index, np.zeros(1000, np.float32))
                session.finish_load()
                step = 0
                while not stop.is_set():
                    train(session, step, 1, gradient)
                    step += 1
                    calls.append("step")
        except Exception as error:  # pylint: disable=broad-except
            failures.append(repr(error))

    def ask_on():
        while not stop.is_set():
            done = secure.luwuctl("observer", "-o", "json", "--timeout-ms", "20000", "health")
            calls.append("health")
            if done.returncode != 0:
                failures.append(done.stdout + done.stderr)

    threads = [threading.Thread(target=each) for each in (train_on, ask_on)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(ROTATIONS):
            before = serial_of(secure)
            time.sleep(1.1)  # gRPC tells files apart by their times, in seconds
            make_certificates(secure.certificates)
            end = time.monotonic() + 60 * REFRESH_S
            while serial_of(secure) == before:
                assert time.monotonic() < end, "the new certificate is not in use"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    assert calls.count("step") > 0 and calls.count("health") >= ROTATIONS


def test_no_secret_and_no_tensor_bytes_in_logs_status_and_metrics():
    """Secrets of sessions: AccessMatrixTest.SecretsOfSessionsAreInNoLogAndNoStatus."""
    with SecureCluster(nodes=2, shm=[True, False], memory="64MiB", metrics=True,
                       log_level="debug") as secure:
        key = next(line for line in
                   (secure.certificates / "daemon.pem").read_text().splitlines()
                   if not line.startswith("-"))
        with luwu.Session(secure.endpoints, small_job("team-a"), 0,
                          **options_of(secure, "trainer")) as session:
            for index in range(2):
                session.load(index, MARKER)
            session.finish_load()
            train(session, 0, 2, MARKER * np.float32(0))
            with pytest.raises(luwu.errors.LuwuError) as caught:  # errors tell no values either
                session.load(0, MARKER)
            assert "SECRETWT" not in str(caught.value)
            status = secure.luwuctl("operator", "-o", "json", "status").stdout
            doctor = secure.luwuctl("operator", "-o", "json", "doctor").stdout
            pages = ""
            for index in range(2):
                url = f"http://{secure.metrics_address(index)}/metrics"
                with urllib.request.urlopen(url, timeout=60) as page:
                    pages += page.read().decode()
        told = secure.logs() + status + doctor + pages
        assert "team-a" in secure.logs() and "team-a" in status
        assert "luwu_identity_sessions{" in pages
        for marker in ("SECRETWT", b"SECRETWT".hex(), key, repr(float(MARKER[0])),
                       f"{MARKER[0]:g}"):
            assert marker not in told, marker
