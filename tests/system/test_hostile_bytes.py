"""Whatever arrives on the ports, from whoever, the daemon goes on and serves."""

import random
import socket
import struct

import pytest
from programs import health
from training import train_a_little

CONNECTIONS = 40


def payloads():
    """Bytes that no client of ours sends, from a fixed seed."""
    source = random.Random(20240918)
    yield b""
    yield b"\n"
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0xFFFFFF00) + b"\x00" * 64
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100  # TLS hello
    yield b"\x00" * 4096
    yield b"\xff" * 4096
    for bits in (8, 16, 32, 64):
        yield struct.pack("<Q", (1 << bits) - 1) * 64
    for _ in range(CONNECTIONS):
        yield source.randbytes(source.randrange(1, 5000))


def attack(connect) -> None:
    """Every payload on a connection of its own; some are held open while others come."""
    held = []
    for number, payload in enumerate(payloads()):
        sock = connect()
        try:
            sock.sendall(payload)
            if number % 3 == 0:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the daemon has seen enough and is gone
        if number % 2 == 0:
            held.append(sock)
        else:
            sock.close()
    # A connection that says nothing wrong is not closed at once, but none may be answered forever.
    for sock in held:
        sock.settimeout(30)
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        finally:
            sock.close()


def reset(connect) -> None:
    """Connections that vanish with RST, right away and after a few bytes."""
    for payload in (b"", b"PRI * HT", b"\x01"):
        for _ in range(CONNECTIONS):
            sock = connect()
            sock.sendall(payload)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


def tcp(port):
    return lambda: socket.create_connection(("127.0.0.1", port), 10)


def unix(path):
    def connect():
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(path)
        return sock

    return connect


@pytest.mark.parametrize("plane", ["control", "data", "shm"])
@pytest.mark.parametrize("assault", [attack, reset])
def test_garbage_does_not_disturb_the_daemon(cluster, plane, assault):
    node = cluster.nodes[0]
    connect = {
        "control": tcp(node.control_port),
        "data": tcp(node.data_port),
        "shm": unix(node.shm_path),
    }[plane]
    if plane == "control" and assault is attack:
        # An HTTP/2 connection is allowed to stay open and idle: nobody waits for its end.
        for payload in payloads():
            with connect() as sock:
                try:
                    sock.sendall(payload)
                except OSError:
                    pass
    else:
        assault(connect)
    assert cluster.daemons[0].alive(), cluster.daemons[0].log_tail()
    assert health(node.control, "node0") == health(node.control, "node1")
    train_a_little(cluster.endpoints, "auto")
    train_a_little(cluster.endpoints, "tcp")
    assert cluster.stop() == 0


def test_a_file_descriptor_flood_is_survived(cluster):
    """Idle connections in numbers do not keep a worker out."""
    node = cluster.nodes[0]
    idle = [tcp(port)() for port in (node.control_port, node.data_port) for _ in range(200)]
    idle += [unix(node.shm_path)() for _ in range(100)]
    try:
        train_a_little(cluster.endpoints, "auto")
    finally:
        for sock in idle:
            sock.close()
    assert cluster.stop() == 0
