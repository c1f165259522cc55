"""The step protocol of one worker: begin late, commit until it holds."""

from __future__ import annotations

from typing import Callable, Sequence

from luwu.errors import StateError
from luwu.session import CommitResult, Session
from luwu.specs import HyperParameters
from luwu.torch.settings import Settings
from luwu.torch.transfer import repeat

_COMMIT_ATTEMPT_S = 5.0  # how long Ctrl-C may go unnoticed


class Steps:
    """Counts steps. ``hyper_parameters`` gives the present values of all groups."""

    def __init__(self, session: Session, settings: Settings,
                 hyper_parameters: Callable[[], Sequence[HyperParameters]]) -> None:
        self._session = session
        self._settings = settings
        self._hyper_parameters = hyper_parameters
        self._sent: list[HyperParameters] | None = None
        self.current = session.current_step

    @property
    def begun(self) -> bool:
        return self._sent is not None

    def begin(self) -> None:
        """Opens the current step with the present hyper-parameters, once."""
        if self._sent is not None:
            return
        values = list(self._hyper_parameters())
        repeat(lambda: self._session.begin_step(
            self.current, values, self._settings.call_timeout_s), self._settings.worker_timeout_s)
        self._sent = values

    def check_unchanged(self) -> None:
        """``StateError`` if a hyper-parameter was changed after the step had begun with it."""
        for group, (sent, now) in enumerate(zip(self._sent or (), self._hyper_parameters())):
            if sent != now:
                raise StateError(
                    f"step {self.current} began with {sent} for parameter group {group}, which is "
                    f"now {now}: the daemons have already updated layers with the first. Change "
                    "hyper-parameters before the step's first training forward, such as right "
                    "after step()")

    def commit(self) -> CommitResult:
        """Ends the step; repeated while a worker is lost or slow. The next one may then begin."""
        attempt_s = min(self._settings.call_timeout_s, _COMMIT_ATTEMPT_S)
        result = repeat(lambda: self._session.commit(self.current, attempt_s),
                        self._settings.worker_timeout_s)
        if result.outcome != "failed":
            self.current += 1
            self._sent = None
        return result
