"""Guesses which unit is needed next: the order of the last pass is the plan of this one.

Only a hint. A wrong guess costs a counter and an unneeded fetch, never correctness.
"""

from __future__ import annotations

TRAIN = "train"
EVAL = "eval"
_VISITS_MAX = 1 << 16  # of one pass; a program that never calls the root module stays bounded


class _Order:
    def __init__(self) -> None:
        self.last: list[int] = []
        self.visits: list[int] = []
        self.cursor = 0


class Predictor:
    """Knows one order for training passes (forward and backward) and one for the others."""

    def __init__(self) -> None:
        self._orders = {TRAIN: _Order(), EVAL: _Order()}
        self.hits = 0
        self.misses = 0

    def begin(self, mode: str) -> None:
        """A pass of ``mode`` begins at the root module."""
        order = self._orders[mode]
        if order.visits:
            order.last = order.visits
        order.visits, order.cursor = [], 0

    def visit(self, mode: str, unit: int) -> bool:
        """``unit`` is needed now. False if another one had been predicted."""
        order = self._orders[mode]
        if len(order.visits) < _VISITS_MAX:
            order.visits.append(unit)
        if not order.last:
            return True
        expected = order.last[order.cursor:order.cursor + 1]
        if expected == [unit]:
            self.hits += 1
            order.cursor += 1
            return True
        try:
            order.cursor = order.last.index(unit, order.cursor) + 1
        except ValueError:
            pass  # an unknown turn: go on predicting from the same place
        self.misses += bool(expected)
        return False

    def upcoming(self, mode: str, count: int) -> list[int]:
        """The next ``count`` units, nearest first; fewer or none when nothing is known."""
        order = self._orders[mode]
        return order.last[order.cursor:order.cursor + count]
