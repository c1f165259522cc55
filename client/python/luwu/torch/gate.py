"""Lets one thread at a time into an offloaded module."""

from __future__ import annotations

import threading

from luwu.errors import StateError


class Gate:
    """A lock around each forward, each hook of a backward, and ``step()``; the thread inside may
    enter again. Waiting is bounded, for the case that the thread inside waits for this one."""

    def __init__(self, timeout_s: float) -> None:
        self._lock = threading.RLock()
        self._timeout_s = min(timeout_s, threading.TIMEOUT_MAX)

    def __enter__(self) -> Gate:
        if not self._lock.acquire(timeout=self._timeout_s):
            raise StateError(
                f"another thread was in forward, backward or step() of this offloaded module for "
                f"{self._timeout_s:g} s; only one thread at a time can be")
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
