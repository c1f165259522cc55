"""GPU memory of a session."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable

from luwu import _ffi


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU of a session. Without ``kernels`` the CPU converts dtypes, and ``no_kernels`` says
    why. ``pinned_bytes`` of host memory stage what goes in and out; counters in bytes."""

    ordinal: int
    name: str
    kernels: bool
    no_kernels: str
    pinned_bytes: int
    fetched_bytes: int
    pushed_bytes: int


def read_device_info(call: Callable[..., Any]) -> DeviceInfo | None:
    """``call``: of a session."""
    info = _ffi.CDeviceInfo()
    call("luwu_session_get_device_info", ctypes.byref(info))
    if not info.used:
        return None
    return DeviceInfo(info.ordinal, info.name.decode("utf-8", "replace"), bool(info.kernels),
                      info.no_kernels.decode("utf-8", "replace"), info.pinned_bytes,
                      info.fetched_bytes, info.pushed_bytes)
