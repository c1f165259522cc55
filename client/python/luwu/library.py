"""Process-wide settings of the C library."""

from __future__ import annotations

import atexit
import logging
from typing import Any

from luwu import _ffi

_LEVELS = [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]
_sink: Any = None  # the library calls it: must outlive its registration


def library_version() -> str:
    """Version of the loaded ``libluwu``, such as "0.1.0"."""
    return str(_ffi.library().luwu_version().decode())


def set_log_sink(logger: logging.Logger | None, level: int = logging.INFO) -> None:
    """Sends the library's log lines from ``level`` on to ``logger``; ``None`` stops that.

    Lines come from any thread. Handlers of the logger must not call LuWu.
    """
    global _sink
    if logger is None:
        _ffi.call("luwu_set_log_sink", _ffi.LogSink(), None, 0)
        _sink = None
        return

    def write(line_level: int, line: bytes, _context: Any) -> None:
        logger.log(_LEVELS[max(0, min(3, line_level))], "%s", line.decode("utf-8", "replace"))

    sink = _ffi.LogSink(write)
    lowest = sum(level > known for known in _LEVELS)
    _ffi.call("luwu_set_log_sink", sink, None, min(3, lowest))
    if _sink is None:
        atexit.register(set_log_sink, None)  # no calls into a dying interpreter
    _sink = sink
