"""Which units are in memory: fetch before use, give back after, fetch the next one ahead."""

from __future__ import annotations

from typing import Callable, Sequence

from luwu.errors import StateError
from luwu.session import Session
from luwu.torch import streams
from luwu.torch.gate import Gate
from luwu.torch.predictor import Predictor
from luwu.settings import Settings
from luwu.torch.transfer import Transfer
from luwu.torch.unit import Unit


class Residency:
    """Moves weights in and out. ``version`` gives the version to fetch: the current step."""

    def __init__(self, session: Session, units: Sequence[Unit], settings: Settings,
                 version: Callable[[], int]) -> None:
        self._session = session
        self._units = units
        self._settings = settings
        self._version = version
        self.predictor = Predictor()
        self.gate = Gate(settings.worker_timeout_s + settings.call_timeout_s)

    def enter(self, unit: Unit, mode: str) -> None:
        """Makes a unit's weights usable, and starts fetching what the last pass needed next."""
        if not self.predictor.visit(mode, unit.index):
            self.release_idle(keep=unit)
        self._drop_stale(unit)
        self._start(unit)
        for index in self.predictor.upcoming(mode, self._settings.prefetch):
            self._start(self._units[index])
        self.materialise(unit)

    def materialise(self, unit: Unit) -> None:
        """Waits for the fetch of a unit's present weights, started now if it was not before."""
        self._drop_stale(unit)
        if unit.resident:
            return
        self._start(unit)
        self._finish_fetch(unit)

    def _drop_stale(self, unit: Unit) -> None:
        if unit.version == self._version() or not (unit.resident or unit.fetching is not None):
            return
        if unit.running:
            raise StateError(
                f"unit {unit.name!r} is in use with the weights of step {unit.version}, but step "
                f"{self._version()} is the present one")
        self.release(unit)

    def _finish_fetch(self, unit: Unit) -> None:
        assert unit.fetching is not None
        try:
            unit.fetching.wait(self._settings.call_timeout_s, self._settings.worker_timeout_s)
        except BaseException:
            unit.stray = unit.fetching
            raise
        finally:
            unit.fetching = None
        streams.before_use(unit.stream, unit.device)
        for storage in unit.storages:
            storage.attach()
        unit.resident = True

    def needed_next(self, unit: Unit, mode: str) -> bool:
        """True if the unit is expected to be needed again before any other one."""
        return self.predictor.upcoming(mode, 1) == [unit.index]

    def release(self, unit: Unit) -> None:
        """Gives a unit's memory back. A fetch under way is waited for first: it writes there."""
        if unit.fetching is not None:
            self._finish_fetch(unit)
        if unit.resident:
            unit.resident = False
            streams.after_use(unit.stream, unit.device)
            for storage in unit.storages:
                storage.release()

    def forget(self) -> None:
        """After the session has ended: waits for what may still write, and lets all memory go."""
        for unit in self._units:
            for transfer in (unit.fetching, unit.stray):
                if transfer is not None:
                    transfer.settle(self._settings.call_timeout_s)
            unit.fetching = unit.stray = None
            unit.resident = False
            unit.version = -1
            for storage in unit.storages:
                storage.release()

    def release_idle(self, keep: Unit | None = None) -> None:
        """Releases every unit that is not in use: guesses that did not come true."""
        for unit in self._units:
            if unit is not keep and not unit.busy:
                self.release(unit)

    def _start(self, unit: Unit) -> None:
        if unit.resident or unit.fetching is not None:
            return
        if unit.stray is not None:
            unit.stray.settle(self._settings.call_timeout_s)
            unit.stray = None
        version = unit.version = self._version()

        unit.stream = streams.current(unit.device)

        def start():  # type: ignore[no-untyped-def]
            segments = [storage.allocate() for storage in unit.storages]
            return self._session.fetch_async(
                unit.index, version, segments, self._settings.call_timeout_s,
                **streams.argument(unit.stream))

        unit.fetching = Transfer(start)
