"""Options of ``luwu.torch.offload`` that most programs leave alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """``prefetch``: units fetched ahead in the order of the last pass (0: none).
    ``pushes_in_flight``: units whose gradients may wait to be sent before backward waits for them.
    ``worker_timeout_s``: how long a fetch, push or commit is repeated while a worker is lost or
    slow. ``call_timeout_s``: deadline of one call. ``open_timeout_s``: of creating or joining the
    job, in which daemons may have to come up and to set up its memory. ``load_timeout_s``:
    how long to wait for
    the weights of rank ``loader_rank``. ``held``: dtype of the gradient sums that deferred and
    speculative updates hold ("fp32", "bf16" or the full names). ``accumulates``: memory for
    gradient sums, for ``optimizer.accumulate()`` without ``micro_batches``. ``resume_timeout_s``:
    how long ``optimizer.resume()`` waits for daemons and their jobs to come back. The others are as
    in ``luwu.Session`` and ``luwu.JobSpec``.
    """

    prefetch: int = 1
    pushes_in_flight: int = 2
    worker_timeout_s: float = 120.0
    call_timeout_s: float = 30.0
    open_timeout_s: float = 60.0
    load_timeout_s: float = 300.0
    loader_rank: int = 0
    restart_count: int | None = None
    transport: str = "auto"
    verify: str = "tcp"
    reduction: str = "mean"
    on_non_finite: str = "skip"
    keep_undo_state: bool | None = None
    held: str = "fp32"
    shard_elements: int | None = None
    slots_per_worker: int | None = None
    overflow_bytes: int | None = None
    accumulates: bool = False
    durable_every: int = 0
    durability: str = "memory"
    memory_bytes: int = 0
    resume_timeout_s: float = 300.0
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
