"""Connections in numbers that prove nothing: the daemon bounds them, goes on, and forgets them.

The numbers are the project's: 10,000 idle connections and 1,000 that stop in the middle of their
handshake. What they may cost is asked of the kernel, by the daemon's descriptors and memory.
"""

import contextlib
import os
import random
import resource
import socket
import threading
import time

import pytest
from training import train_a_little

IDLE = 10_000
HALF_OPEN = 1_000
ADDRESSES = 40
WAITING_MAX = 1024  # common/transport/waiting_room.h
ANSWER_BYTES = 96  # common/transport/handshake.h
NONCE_BYTES = 32
SPARE = 64  # descriptors that come and go beside: gRPC, links
MEMORY_SPARE = 48 << 20
PATIENCE_S = 60

# linux/in.h: the port is chosen at connect, so that addresses do not run out of ports.
IP_BIND_ADDRESS_NO_PORT = 24


@pytest.fixture(autouse=True)
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 1000:
        pytest.skip(f"needs {IDLE + 1000} descriptors (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def crowd():
    """Sockets that are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda sock: stack.enter_context(contextlib.closing(sock))


def dial_tcp(port: int, number: int) -> socket.socket:
    """From one of ADDRESSES addresses of the loopback network."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((f"127.1.0.{1 + number % ADDRESSES}", 0))
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", port))
    return sock


def dial_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)  # blocking: with a timeout a full backlog would be an error at once
    sock.settimeout(PATIENCE_S)
    return sock


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def wait_for(what: str, holds) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lines(daemon, event: str) -> int:
    return sum(event in line for line in daemon.log().splitlines())


@pytest.mark.parametrize("plane", ["tcp", "shm"])
def test_ten_thousand_idle_connections_keep_nobody_out(start_cluster, crowd, plane):
    cluster = start_cluster()
    node, daemon = cluster.nodes[0], cluster.daemons[0]
    train_a_little(cluster.endpoints, "auto")  # what is made once has been made
    train_a_little(cluster.endpoints, "tcp")
    descriptors_before, memory_before = open_descriptors(daemon.pid), resident_bytes(daemon.pid)
    held = []
    for number in range(IDLE):
        sock = dial_tcp(node.data_port, number) if plane == "tcp" else dial_unix(node.shm_path)
        held.append(crowd(sock))
    assert open_descriptors(daemon.pid) <= descriptors_before + WAITING_MAX + SPARE
    train_a_little(cluster.endpoints, "tcp")
    train_a_little(cluster.endpoints, "shm")
    for sock in held:
        sock.close()
    wait_for("descriptors return", lambda: open_descriptors(daemon.pid) <= descriptors_before + 8)
    assert resident_bytes(daemon.pid) <= memory_before + MEMORY_SPARE
    # Of ten thousand that were pushed out or ran out of time, the log names some and counts the
    # rest.
    assert 0 < lines(daemon, "connection_shed") < 1000
    assert lines(daemon, "connection_refused") < 1000
    assert "lines_left_out" in daemon.log()
    assert cluster.stop() == 0


def test_a_thousand_that_stop_in_their_handshake_are_ended_by_the_daemon(start_cluster, crowd):
    cluster = start_cluster()
    node, daemon = cluster.nodes[0], cluster.daemons[0]
    train_a_little(cluster.endpoints, "tcp")
    before = open_descriptors(daemon.pid)
    source = random.Random(20241129)
    held = []
    for number in range(HALF_OPEN):
        sock = crowd(dial_tcp(node.data_port, number))
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"LWD1" + bytes(source.randrange(ANSWER_BYTES - 4)))
        held.append(sock)
    train_a_little(cluster.endpoints, "auto")
    for sock in held:  # nobody of them hears more than the nonce, and each hears the end
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(4096):
                heard += piece
        assert len(heard) <= NONCE_BYTES
    wait_for("descriptors return", lambda: open_descriptors(daemon.pid) <= before + 8)
    train_a_little(cluster.endpoints, "tcp")
    assert cluster.stop() == 0


def test_who_sends_a_byte_now_and_then_has_no_longer_than_others(start_cluster, crowd):
    """The deadline is one for the handshake; bytes do not move it."""
    cluster = start_cluster()
    node, daemon = cluster.nodes[0], cluster.daemons[0]
    sock = crowd(dial_tcp(node.data_port, 0))
    ended = threading.Event()

    def drip():
        # One byte a second would take a minute and a half for the whole answer.
        for _ in range(ANSWER_BYTES - 1):
            if ended.wait(1):
                return
            with contextlib.suppress(OSError):
                sock.send(b"\0")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
    finally:
        ended.set()
        dripping.join()
    assert "the handshake took over" in daemon.log()
    train_a_little(cluster.endpoints, "tcp")
    assert cluster.stop() == 0
