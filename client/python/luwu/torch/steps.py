"""The step protocol of one worker: begin late, commit until it holds."""

from __future__ import annotations

from typing import Callable, Sequence

from luwu.errors import StateError
from luwu.session import CommitResult, Session
from luwu.optimizers import HyperParameters
from luwu.settings import Settings
from luwu.torch.transfer import repeat

_COMMIT_ATTEMPT_S = 5.0  # how long Ctrl-C may go unnoticed


# Hyper-parameters of a group, and the limit of its gradient norm (0: none).
GroupValues = tuple[HyperParameters, float]


class Steps:
    """Counts steps. ``group_values`` gives the present values of all groups."""

    def __init__(self, session: Session, settings: Settings,
                 group_values: Callable[[], Sequence[GroupValues]]) -> None:
        self._session = session
        self._settings = settings
        self._group_values = group_values
        self._sent: list[GroupValues] | None = None
        self.current = session.current_step

    @property
    def begun(self) -> bool:
        return self._sent is not None

    def restart(self, step: int) -> None:
        """The session is a new one; ``step`` is the step to begin next."""
        self.current = step
        self._sent = None

    def begin(self) -> None:
        """Opens the current step with the present hyper-parameters, once."""
        if self._sent is not None:
            return
        values = list(self._group_values())
        repeat(lambda: self._session.begin_step(
            self.current, [group for group, _ in values], self._settings.call_timeout_s,
            max_norm=[limit for _, limit in values]), self._settings.worker_timeout_s)
        self._sent = values

    def check_unchanged(self) -> None:
        """``StateError`` if a hyper-parameter was changed after the step had begun with it."""
        for group, (sent, now) in enumerate(zip(self._sent or (), self._group_values())):
            if sent != now:
                raise StateError(
                    f"step {self.current} began with {_words(sent)} for parameter group {group}, "
                    f"now {_words(now)}: the daemons work with the first. Change hyper-parameters "
                    "before the step's first training forward, such as right after step()")

    def commit(self) -> CommitResult:
        """Ends the step; repeated while a worker is lost or slow. The next one may then begin."""
        attempt_s = min(self._settings.call_timeout_s, _COMMIT_ATTEMPT_S)
        result = repeat(lambda: self._session.commit(self.current, attempt_s),
                        self._settings.worker_timeout_s)
        if result.outcome != "failed":
            self.current += 1
            self._sent = None
        return result


def _words(values: GroupValues) -> str:
    group, limit = values
    return f"{group} and max_norm {limit}" if limit else str(group)
