"""Processes that the demo starts: one JSON event per line from each, and a sure end for all."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

_HERE = Path(__file__).resolve().parent
# Freed weights are used again by the next unit instead of going back to the kernel: touching new
# pages costs more than the fetch.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
           "MALLOC_TOP_PAD_": str(64 << 20)}


def _blas() -> dict[str, str]:
    """Debian's OpenBLAS takes its slowest kernels on CPUs that are newer than it: name those of the
    instruction set instead."""
    if "OPENBLAS_CORETYPE" in os.environ:
        return {}
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        line = next((line for line in file if line.startswith("flags")), "")
    flags = set(line.split())
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return {"OPENBLAS_CORETYPE": "SkylakeX"}
    return {"OPENBLAS_CORETYPE": "Haswell"} if {"avx2", "fma"} <= flags else {}


class ChildFailed(RuntimeError):
    """A child ended by itself with an error; the text has the end of its log."""


class Child:
    """A Python process of this folder. ``name`` is for messages and its log ``name.log``."""

    def __init__(self, script: str, arguments: Sequence[str], folder: Path, name: str,
                 threads: int) -> None:
        self.name = name
        self._log_path = folder / f"{name}.log"
        limits = {key: str(threads) for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        # Spinning threads starve each other on a busy machine.
        limits["OMP_WAIT_POLICY"] = "passive"
        with open(self._log_path, "ab") as log:
            self.process = subprocess.Popen(
                # If the demo itself is killed, its children go with it.
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(_HERE / script),
                 *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **_MALLOC, **_blas(), **limits},
                start_new_session=True)  # Ctrl-C reaches the demo only, which then ends this one
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends it if it still runs."""
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def read(self) -> list[dict[str, Any]] | None:
        """Events that have arrived; None at the end of the process's output."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def check_exit(self) -> None:
        """``ChildFailed`` unless it ended with status 0."""
        status = self.process.wait()
        if status != 0:
            tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])
            raise ChildFailed(f"{self.name} (pid {self.pid}) ended with status {status}\n{tail}")


class Family:
    """All children of one run. A context manager; leaving it ends them all."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.children: dict[str, Child] = {}

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.end()
        self._selector.close()

    def add(self, child: Child) -> None:
        """Takes over a started child; one of the same name that was killed is replaced."""
        self.children[child.name] = child
        assert child.process.stdout is not None
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)

    def kill(self, name: str) -> int:
        """Kills one child; its events end. Returns its pid."""
        child = self.children[name]
        assert child.process.stdout is not None
        self._selector.unregister(child.process.stdout)
        child.kill()
        child.end()
        return child.pid

    def events(self, silence_s: float) -> Iterator[tuple[Child, dict[str, Any]]]:
        """Events of all children in order of arrival, until every child has ended well.
        ``ChildFailed`` when one has not, or when nothing was heard for ``silence_s``."""
        heard = time.monotonic()
        while self._selector.get_map():
            for key, _ in self._selector.select(timeout=1):
                heard = time.monotonic()
                found = key.data.read()
                if found is None:
                    self._selector.unregister(key.fileobj)
                    key.data.check_exit()
                for event in found or ():
                    yield key.data, event
            if time.monotonic() - heard > silence_s:
                raise ChildFailed(f"nothing heard of {', '.join(self.children)} for {silence_s} s")
