"""The live line of a run: redrawn in place on a terminal, one line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_PLAIN_EVERY_S = 10.0


def human_bytes(count: float) -> str:
    """12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Progress:
    """A context manager; ``note`` prints a line of its own above the live one."""

    def __init__(self, label: str, steps: int, out: TextIO = sys.stdout) -> None:
        self._label = label
        self._steps = steps
        self._out = out
        self._live = out.isatty()
        self._line = ""
        self._printed = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._line:
            self._out.write("\n")
        self._out.flush()

    def step(self, step: int, loss: float, tokens_per_s: float, fetched: int | None = None,
             pushed: int | None = None) -> None:
        """A step has ended. Bytes are since the start, of all workers."""
        line = f"{self._label} step {step + 1}/{self._steps}  loss {loss:.4f}"
        if tokens_per_s:
            line += f"  {tokens_per_s:,.0f} tokens/s"
        if fetched is not None and pushed is not None:
            line += f"  fetched {human_bytes(fetched)}  pushed {human_bytes(pushed)}"
        self._line = line
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._out.write("\r\x1b[K" + line[:width])
        elif step + 1 == self._steps or time.monotonic() - self._printed >= _PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self._out.write(line + "\n")
        self._out.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._out.write("\r\x1b[K")
        self._out.write(f"{self._label} {text}\n")
        if self._live:
            self._out.write(self._line)
        self._out.flush()
