"""Exceptions of the LuWu client.

The class says what the caller must rebuild, as the error ranges of ``luwu.h`` do:

=====================  ==========================================================================
``ArgumentError``      the call itself is wrong; repeating it cannot help
``StateError``         the call does not fit the present state
``RetryableError``     repeat the same call (deadline, lost worker, unavailable)
``SessionLostError``   open a new session (or job) first
``CorruptError``       bytes are not what was written
``InternalError``      a defect in LuWu
=====================  ==========================================================================

Every exception carries ``code`` (the ``luwu_status`` number) and a message that names what failed,
on which object, and what to do.
"""

from __future__ import annotations

import re


class LuwuError(RuntimeError):
    """Base of all errors. ``code`` is a ``luwu_status`` number, or 0 for errors found in Python."""

    code: int = 0

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class LibraryError(LuwuError, ImportError):
    """``libluwu.so.1`` was not found, or it does not speak this package's ABI level."""


class ArgumentError(LuwuError, ValueError):
    """The call itself is wrong: fix the argument that the message names."""

    code = -100


class BadHandleError(ArgumentError):
    """A session or operation that is closed, finished, or not of this process."""

    code = -101


class UnsupportedError(ArgumentError):
    """A combination that LuWu does not offer (a dtype pair, a view over tcp)."""

    code = -104


class NotFoundError(ArgumentError):
    """No job, layer, tensor or rank of that name."""

    code = -105


class SchemaMismatchError(ArgumentError):
    """The job exists with another spec; the message names the first difference."""

    code = -106


class AccessError(ArgumentError):
    """The caller may not do this."""

    code = -107


class StateError(LuwuError):
    """The call does not fit the present state (step order, closed session, forked process)."""

    code = -200


class LayerClosedError(StateError):
    """A push for a layer that this worker has closed in this step."""

    code = -201


class StaleVersionError(StateError):
    """A fetch of a version that the daemons no longer have."""

    code = -202


class StepMismatchError(StateError):
    """The step is not the one that the daemons are at, or hyper-parameters differ between ranks."""

    code = -203


class RankTakenError(StateError):
    """A living session holds the rank."""

    code = -204


class ResourceExhaustedError(StateError):
    """The job does not fit the budget; the message says how many bytes it needs."""

    code = -205


class AlreadyExistsError(StateError):
    """Something of that name exists."""

    code = -206


class RetryableError(LuwuError):
    """Repeat the same call."""

    code = -300


class DeadlineError(RetryableError, TimeoutError):
    """The timeout of the call ran out; the message names what was waited for."""

    code = -300


class WorkerLostError(RetryableError):
    """A rank has no living session; the message names rank, host and pid."""

    code = -301


class UnavailableError(RetryableError):
    """A daemon cannot be reached at this moment."""

    code = -302


class CancelledError(RetryableError):
    """The session was closed while the operation was under way."""

    code = -303


class SessionLostError(LuwuError):
    """The session is of no more use: open a new one."""

    code = -400


class FencedError(SessionLostError):
    """A newer holder of the rank has taken over."""

    code = -400


class NodeLostError(SessionLostError):
    """A daemon is gone; the message names the node."""

    code = -401


class StaleEpochError(SessionLostError):
    """The job was created anew since this session was opened."""

    code = -402


class JobFailedError(SessionLostError):
    """The job accepts no further step; the message names the culprit."""

    code = -403


class RolledBackError(SessionLostError):
    """The job has gone back to a durable point: call ``optimizer.resume()`` (with ``luwu.torch``)
    or ``Session.reopen()``, and go on with the step that it returns.

    ``step`` is the step it went back to, ``None`` when that was not known yet.
    """

    code = -404

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message, code)
        found = re.search(r"rolled back to step (\d+)", message)
        self.step: int | None = int(found.group(1)) if found else None


class CorruptError(LuwuError):
    """Bytes are not what was written."""

    code = -500


class InternalError(LuwuError):
    """A defect in LuWu."""

    code = -600


_EXACT: dict[int, type[LuwuError]] = {
    kind.code: kind
    for kind in (
        ArgumentError, BadHandleError, UnsupportedError, NotFoundError, SchemaMismatchError,
        AccessError, StateError, LayerClosedError, StaleVersionError, StepMismatchError,
        RankTakenError, ResourceExhaustedError, AlreadyExistsError, DeadlineError, WorkerLostError,
        UnavailableError, CancelledError, FencedError, NodeLostError, StaleEpochError,
        JobFailedError, RolledBackError, CorruptError, InternalError,
    )
}
_RANGES: dict[int, type[LuwuError]] = {
    1: ArgumentError, 2: StateError, 3: RetryableError, 4: SessionLostError, 5: CorruptError,
    6: InternalError,
}


def error_class(code: int) -> type[LuwuError]:
    """The class for a negative ``luwu_status``; codes of later libraries fall into their range."""
    return _EXACT.get(code) or _RANGES.get(-code // 100, InternalError)


def make_error(code: int, message: str) -> LuwuError:
    """An exception for a negative ``luwu_status``."""
    return error_class(code)(message, code)
