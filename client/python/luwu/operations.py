"""Asynchronous fetches and pushes."""

from __future__ import annotations

import math
import time
from typing import Any, Callable

from luwu import _ffi, errors

_TIMEOUT_MS_MAX = 2**32 - 1
_SLICE_S = 0.5  # how long Ctrl-C may go unnoticed


def milliseconds(timeout_s: float) -> int:
    """Seconds to the library's milliseconds: at least 1, so that a short timeout stays one, and at
    most 49 days, which infinity means too."""
    if math.isnan(timeout_s):
        raise errors.ArgumentError("a timeout is NaN; it must be a number of seconds")
    return int(max(1, min(_TIMEOUT_MS_MAX, timeout_s * 1000)))


class Operation:
    """One fetch or push in the background.

    Keeps the buffers alive until it is done, also when the caller drops it. May be waited for or
    tested from any thread, by one thread at a time. The result can be asked for repeatedly.
    """

    def __init__(self, handle: int, buffers: Any, on_done: Callable[[Operation], None]) -> None:
        self._handle = handle
        self._buffers = buffers
        self._on_done = on_done
        self._error: errors.LuwuError | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """True when finished, well or badly. Does not block."""
        if not self._done:
            status = _ffi.library().luwu_test(self._handle)
            if status != _ffi.IN_PROGRESS:
                self._finish(status)
        return self._done

    def wait(self, timeout_s: float = 60.0) -> None:
        """Waits until done and raises the operation's error if it failed.

        ``DeadlineError`` while ``done`` is still False: ``timeout_s`` ran out first; wait again.
        """
        milliseconds(timeout_s)  # says what is wrong with it
        end = time.monotonic() + timeout_s
        while not self._done:
            left = end - time.monotonic()
            self._wait_slice(max(0.0, min(left, _SLICE_S)))
            if not self._done and left <= _SLICE_S:
                raise errors.DeadlineError(f"not done after {timeout_s} s; wait again")
        if self._error is not None:
            raise self._error

    def _wait_slice(self, seconds: float) -> None:
        status = _ffi.library().luwu_wait(self._handle, milliseconds(seconds))
        if status == errors.DeadlineError.code:
            # Either this wait ran out, or the operation ended with its own deadline. Only in the
            # second case has the library released the handle.
            text = _ffi.last_error()
            status = _ffi.library().luwu_test(self._handle)
            if status == _ffi.IN_PROGRESS:
                return
            if status == errors.BadHandleError.code:
                self._finish(errors.DeadlineError.code, text)
                return
        self._finish(status)

    def _finish(self, status: int, text: str | None = None) -> None:
        if status < 0:
            self._error = errors.make_error(status, text or _ffi.last_error())
        self._done = True
        self._buffers = None
        self._on_done(self)
