"""Trainer processes of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

from cluster import spawn

_SCRIPT = Path(__file__).resolve().parent / "train_worker.py"


class Worker:
    """One ``train_worker.py``. A context manager that ends the process."""

    def __init__(self, **options: Any) -> None:
        self.process = spawn(
            [sys.executable, str(_SCRIPT), json.dumps(options)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            yield event

    def await_event(self, name: str) -> dict[str, Any]:
        """Reads until an event of that name; an end or an error before it fails the test."""
        for event in self._lines():
            if event["event"] == name:
                return event
            assert event["event"] != "error", event
        raise AssertionError(f"ended before {name!r}: {self.events[-3:]}")

    def go_on(self) -> None:
        """Answers "paused" or "end"."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        self.process.wait()

    def losses(self) -> list[float]:
        return [event["loss"] for event in self.events if event["event"] == "step"]


def finish(*workers: Worker) -> None:
    """Waits until all have trained, then lets them leave the job."""
    for worker in workers:
        worker.await_event("end")
    for worker in workers:
        worker.go_on()
    for worker in workers:
        assert worker.process.wait(30) == 0


def weights_of(worker: Worker) -> dict[str, list[float]]:
    """Final masters that rank 0 told."""
    event, = [event for event in worker.events if event["event"] == "weights"]
    return event["weights"]
