"""Fetches and pushes that are repeated while that can help."""

from __future__ import annotations

import time
from typing import Callable, TypeVar

from luwu.errors import CancelledError, LuwuError, RetryableError
from luwu.operations import Operation

_PAUSE_S = 0.2  # between attempts that fail at once
Result = TypeVar("Result")


def repeat(call: Callable[[], Result], budget_s: float) -> Result:
    """Calls until it succeeds; after ``budget_s`` the last ``RetryableError`` is raised."""
    end = time.monotonic() + budget_s
    while True:
        try:
            return call()
        except CancelledError:
            raise
        except RetryableError:
            if time.monotonic() + _PAUSE_S >= end:
                raise
            time.sleep(_PAUSE_S)


class Transfer:
    """One fetch or push under way. ``start`` starts it, again when an attempt fails in a way that
    repeating can cure (pushes and fetches are idempotent)."""

    def __init__(self, start: Callable[[], Operation]) -> None:
        self._start = start
        self._operation = start()

    def settle(self, timeout_s: float) -> None:
        """Waits until it has ended, well or badly, and no longer touches its memory."""
        try:
            self._operation.wait(timeout_s)
        except LuwuError:
            if not self._operation.done:
                raise

    def wait(self, attempt_s: float, budget_s: float) -> None:
        """Waits until done. Other errors than retryable ones are raised at once."""

        def attempt() -> None:
            try:
                self._operation.wait(attempt_s)
            except RetryableError:
                if self._operation.done:
                    self._operation = self._start()
                raise

        repeat(attempt, budget_s)
