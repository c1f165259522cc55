"""CUDA streams: what the library's copies are ordered with.

On the CPU there are none, and everything here does nothing. On a GPU a unit's memory belongs to the
stream on which it was allocated, as torch's allocator sees it. The copies of a fetch are ordered
with that stream; work on another one is ordered with it here, so that a module may run on any
stream as long as it runs on one at a time.
"""

from __future__ import annotations

from typing import Any

import torch


def current(device: torch.device) -> Any:
    """The stream that this thread works on, or ``None`` for the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def argument(stream: Any) -> dict[str, int]:
    """The keyword that calls of ``luwu.Session`` need for memory of the stream's GPU."""
    return {} if stream is None else {"stream": stream.cuda_stream}


def before_use(owner: Any, device: torch.device) -> None:
    """What this thread puts onto its stream from now on comes after what is on ``owner``."""
    here = current(device)
    if owner is not None and here != owner:
        here.wait_stream(owner)


def after_use(owner: Any, device: torch.device) -> None:
    """What ``owner`` does from now on comes after what is on this thread's stream."""
    here = current(device)
    if owner is not None and here != owner:
        owner.wait_stream(here)
