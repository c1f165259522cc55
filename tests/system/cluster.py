"""Starts luwud processes on free loopback ports for tests, the demo and benchmarks.

    with Cluster(binary, nodes=2, memory="256MiB") as cluster:
        cluster.endpoints          # "127.0.0.1:40001,127.0.0.1:40003"
        cluster.kill(1)            # SIGKILL of node1
        cluster.start(1)           # the same node again
        cluster.stop(0)            # SIGTERM; returns the exit status

Each node has a folder of its own with its configuration (luwud.toml) and log (luwud.log). Only
processes that a Cluster started are ever signalled. Leaving the `with` block ends them all, and so
does the end of this process, whatever ends it. Needs nothing beyond the standard library and
util-linux.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Dict, List, Optional, Sequence

READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
PORT_ATTEMPTS = 5

# The kernel keeps the promise of spawn() when the *thread* ends that started the process. So one
# thread starts them all; it lives as long as this process.
_spawner = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def spawn(command: Sequence[str], **options) -> subprocess.Popen:
    """As subprocess.Popen; the process is killed when this one ends, even by SIGKILL.

    From any thread. Its pid is the program's: the helper in between replaces itself by it.
    """
    helper = ["setpriv", "--pdeathsig", "KILL", "--"]
    return _spawner.submit(subprocess.Popen, [*helper, *command], **options).result()


class ClusterError(RuntimeError):
    """A daemon did not do what the caller relied on; the text ends with the tail of its log."""


def free_ports(count: int) -> List[int]:
    """Different loopback ports that nobody uses now.

    Not from the range that the kernel gives to outgoing connections: one of those could take the
    port while a daemon is down, and a client that dials such a port can even reach itself.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_outgoing = int(file.read().split()[0])
    candidates = list(range(10000, first_outgoing)) or [0] * 1000
    random.SystemRandom().shuffle(candidates)
    held: List[socket.socket] = []
    try:
        while len(held) < count:
            sock = socket.socket()
            try:
                sock.bind(("127.0.0.1", candidates.pop()))
                held.append(sock)
            except OSError:
                sock.close()
        return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()


@dataclasses.dataclass
class NodeSpec:
    """One entry of the node list."""

    name: str
    weight: int
    control_port: int
    data_port: int
    shm_path: str  # empty: no shared memory

    @property
    def control(self) -> str:
        return f"127.0.0.1:{self.control_port}"

    def toml(self) -> str:
        text = (
            f'\n[[nodes]]\nname = "{self.name}"\nweight = {self.weight}\n'
            f'control = "{self.control}"\ndata = "127.0.0.1:{self.data_port}"\n'
        )
        return text + (f'shm = "{self.shm_path}"\n' if self.shm_path else "")


class Daemon:
    """One luwud process. `arguments` begins with the program; output goes to FOLDER/luwud.log."""

    def __init__(
        self,
        arguments: Sequence[os.PathLike],
        folder: os.PathLike,
        env: Optional[Dict[str, str]] = None,
    ):
        self.arguments = [str(argument) for argument in arguments]
        self.log_path = pathlib.Path(folder) / "luwud.log"
        self.env = env
        self.process: Optional[subprocess.Popen] = None
        self.ready: dict = {}

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> dict:
        """Starts the process and waits until it serves. Returns what it wrote when ready."""
        if self.alive():
            raise ClusterError(f"pid {self.pid} is running already")
        read_fd, write_fd = os.pipe()
        try:
            with open(self.log_path, "ab") as log:
                self.process = spawn(
                    [*self.arguments, "--ready-fd", str(write_fd)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[write_fd],
                    env=self.env,
                    start_new_session=True,  # Ctrl-C reaches the owner only, which then stops us
                )
            os.close(write_fd)
            write_fd = -1
            line = _read_line(read_fd, timeout_s)
        finally:
            os.close(read_fd)
            if write_fd >= 0:
                os.close(write_fd)
        if not line:
            status = self.kill()
            raise ClusterError(
                f"luwud did not serve within {timeout_s} s (exit status {status})\n"
                + self.log_tail()
            )
        self.ready = json.loads(line)
        return self.ready

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: int) -> None:
        """Without waiting. Nothing happens when the process has ended."""
        if self.alive():
            self.process.send_signal(number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM and wait. Returns the exit status."""
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit status. A daemon that does not end is killed, and that is an error."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(
                f"luwud did not end within {timeout_s} s\n{self.log_tail()}"
            ) from None

    def kill(self) -> int:
        """SIGKILL and wait. Returns the exit status, -9 when this ended the process."""
        self.send_signal(signal.SIGKILL)
        return self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-lines:])


class Cluster:
    """`nodes` daemons on this host with one node list.

    `shm[i]` False gives node i no shared-memory socket, so that clients reach it by tcp. `folder`
    keeps configurations and logs there; without it they go when the cluster is closed. With
    `storage` each node has a data directory in its folder; `storage_settings` are further lines of
    its [storage] table. With `metrics` each has a metrics page; see metrics_address.
    """

    def __init__(
        self,
        binary: os.PathLike,
        nodes: int = 1,
        *,
        memory: str = "256MiB",
        threads: int = 1,
        heartbeat_ms: int = 500,
        lease_ms: int = 2000,
        weights: Optional[Sequence[int]] = None,
        shm: Optional[Sequence[bool]] = None,
        log_level: str = "info",
        folder: Optional[os.PathLike] = None,
        env: Optional[Dict[str, str]] = None,
        storage: bool = False,
        storage_settings: str = "",
        metrics: bool = False,
    ):
        self.storage = storage
        self.storage_settings = storage_settings
        self.binary = pathlib.Path(binary)
        # The path of a socket has at most 107 bytes: it gets a short folder of its own.
        self._sockets = pathlib.Path(tempfile.mkdtemp(prefix="luwu-s-"))
        self._temporary = [self._sockets]
        if folder is None:
            folder = tempfile.mkdtemp(prefix="luwu-")
            self._temporary.append(folder)
        self.folder = pathlib.Path(folder)
        self.weights = list(weights) if weights else [1] * nodes
        self.shm = list(shm) if shm else [True] * nodes
        self.settings = (
            f'\n[memory]\nbudget = "{memory}"\n\n[optimizer]\nthreads = {threads}\n'
            f"\n[session]\nheartbeat_ms = {heartbeat_ms}\nlease_ms = {lease_ms}\n"
            f'\n[log]\nlevel = "{log_level}"\n'
        )
        if metrics:
            self.settings += '\n[metrics]\nlisten = "127.0.0.1:0"\n'
        self.env = env
        self.nodes: List[NodeSpec] = []
        self.daemons: List[Daemon] = []
        self._configure()

    def _configure(self) -> None:
        """Chooses ports and writes every node's configuration."""
        ports = free_ports(2 * len(self.weights))
        self.nodes = [
            NodeSpec(
                name=f"node{i}",
                weight=weight,
                control_port=ports[2 * i],
                data_port=ports[2 * i + 1],
                shm_path=str(self._sockets / f"node{i}.sock") if self.shm[i] else "",
            )
            for i, weight in enumerate(self.weights)
        ]
        self.daemons = []
        for i, node in enumerate(self.nodes):
            path = self.folder / node.name
            path.mkdir(parents=True, exist_ok=True)
            config = path / "luwud.toml"
            config.write_text(self.config_text(i))
            self.daemons.append(Daemon([self.binary, "--config", config], path, self.env))

    def config_text(self, index: int) -> str:
        """The configuration file of node `index`."""
        nodes = "".join(node.toml() for node in self.nodes)
        storage = ""
        if self.storage:
            storage = f'\n[storage]\npath = "{self.data_dir(index)}"\n{self.storage_settings}\n'
        return f'[node]\nname = "{self.nodes[index].name}"\n{self.settings}{storage}{nodes}'

    def data_dir(self, index: int) -> pathlib.Path:
        return (self.folder / self.nodes[index].name / "data").absolute()

    def metrics_address(self, index: int) -> str:
        """Of a node that runs; another one after a restart."""
        return f"127.0.0.1:{self.daemons[index].ready['metrics_port']}"

    @property
    def endpoints(self) -> str:
        return ",".join(node.control for node in self.nodes)

    def start(self, index: Optional[int] = None) -> "Cluster":
        """Starts one node, or all."""
        if all(daemon.process is None for daemon in self.daemons) and index is None:
            self._start_first()
            return self
        for daemon in self._chosen(index):
            daemon.start()
        return self

    def _start_first(self) -> None:
        """Starts all. The node list must name the ports before any daemon runs, so another program
        may take one in between: then all get new ones."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                for daemon in self.daemons:
                    daemon.start()
                return
            except ClusterError as error:
                for daemon in self.daemons:
                    if daemon.alive():
                        daemon.kill()
                if attempt == PORT_ATTEMPTS or "in use" not in str(error):
                    raise
                for daemon in self.daemons:
                    daemon.log_path.unlink(missing_ok=True)
                self._configure()

    def stop(self, index: Optional[int] = None) -> int:
        """Ends one node, or all, by SIGTERM. Returns the exit status that is farthest from 0."""
        daemons = [daemon for daemon in self._chosen(index) if daemon.process is not None]
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        return max((daemon.wait() for daemon in daemons), key=abs, default=0)

    def kill(self, index: int) -> int:
        return self.daemons[index].kill()

    def close(self) -> None:
        """Ends every process, hard when it must, and removes the temporary folders."""
        try:
            self.stop()
        finally:
            for daemon in self.daemons:
                if daemon.alive():
                    daemon.kill()
            for folder in self._temporary:
                shutil.rmtree(folder, ignore_errors=True)

    def _chosen(self, index: Optional[int]) -> List[Daemon]:
        return self.daemons if index is None else [self.daemons[index]]

    def __enter__(self) -> "Cluster":
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception) -> None:
        self.close()


def _read_line(fd: int, timeout_s: float) -> str:
    """One line from a pipe; "" at its end or after the timeout."""
    deadline = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return ""
        piece = os.read(fd, 4096)
        if not piece:
            return ""
        data += piece
    return data.decode()
