"""Jobs as a whole, without being a worker of one."""

from __future__ import annotations

from ctypes import c_uint32
from typing import Sequence

from luwu import _ffi
from luwu.cstructs import text
from luwu.operations import milliseconds


def delete_job(endpoints: str | Sequence[str], name: str, force: bool = False,
               timeout_s: float = 30.0) -> None:
    """Deletes a job on every daemon and frees its memory there.

    ``endpoints``: as for ``Session``. A job with open sessions is refused (``StateError``) unless
    ``force``; its workers' calls then end with ``StaleEpochError``. A deletion that failed on one
    daemon (the message names it) can be repeated. ``NotFoundError`` when no daemon has the job.
    """
    if not isinstance(endpoints, str):
        endpoints = ",".join(endpoints)
    _ffi.call("luwu_job_delete", text(endpoints, "endpoints"), text(name, "job name"),
              c_uint32(bool(force)), milliseconds(timeout_s))
