"""``offload``: a module's weights and optimizer state move into the daemons."""

from __future__ import annotations

import logging
import os
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

import torch

from luwu.errors import ArgumentError, LuwuError
from luwu.jobs import delete_job
from luwu.session import Session, resolved_restart_count, wait
from luwu.optimizers import KINDS, SGD, AdamW, HyperParameters, LossScaling
from luwu.specs import DType, JobSpec
from luwu.torch.checks import check_module
from luwu.torch.masters import layer_values
from luwu.torch.optimizer import OffloadedOptimizer, clip_limit
from luwu.torch.plan import UnitPlan, UnitRule, plan_units
from luwu.torch.released import unseal
from luwu.settings import Settings
from luwu.torch.transfer import repeat
from luwu.torch.unit import Unit

_log = logging.getLogger("luwu")
_TELL_S = 10.0  # how often a wait is told that goes on for the same reason
_WAIT_S = 5.0  # how long Ctrl-C may go unnoticed


def decay_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The usual two parameter groups: ``weight_decay`` for matrices, none for biases and norms."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def offload(module: torch.nn.Module, *, units: UnitRule, endpoints: str | Sequence[str] = "",
            job: str = "train", rank: int | None = None, world_size: int | None = None,
            optimizer: HyperParameters = AdamW(),
            param_groups: Sequence[dict[str, Any]] | None = None, wire: str | DType = "bf16",
            gradient_wire: str | DType | None = None, micro_batches: int = 1,
            missing_grad: str = "error", clip_grad_norm: float | None = None,
            clip_scope: str | None = None, loss_scaling: LossScaling | bool | None = None,
            update_mode: str = "auto", settings: Settings = Settings(),
            connect: Callable[[JobSpec], Session] | None = None) -> OffloadedOptimizer:
    """Moves ``module``'s parameters into the daemons, in place, and returns its optimizer.

    The Parameter objects stay the same. Outside of its forward and backward a unit holds no memory:
    it is fetched before forward and again before backward, and its gradients leave as soon as they
    are final. Works with activation checkpointing, gradient accumulation, tied and frozen
    parameters, ``no_grad`` evaluation and generation loops.

    ``units``: the submodules to move in and out as one: a list of them, a class or classes, or a
    function ``(name, module) -> bool``. Everything else, and parameters that units share, forms the
    root unit, which is in memory from the module's forward to the end of backward. Call the module
    itself, not only its units.
    ``endpoints``: "host:port,..." of any daemons. ``job``: the run's name, equal for all workers.
    ``rank``, ``world_size``: default to ``$RANK`` and ``$WORLD_SIZE``, else 0 and 1.
    ``optimizer``: kind, default hyper-parameters, and how state is kept (``luwu.optimizers``).
    ``param_groups``: as for torch optimizers.
    ``wire``: dtype of weights on the wire ("bf16", "fp32", "fp16" or "bfloat16" etc.), and
    ``gradient_wire`` of gradients, by default the same. Parameters keep theirs, any of the three.
    ``micro_batches``: N backward passes before each ``step()``. Gradients are summed: divide each
    loss by N. Or use ``optimizer.accumulate()``; large models need ``settings.accumulates`` for it.
    ``missing_grad``: a parameter without gradient in a unit where others have one is an "error", or
    counts as "zero". A unit without any gradient is not updated in that step, as in torch.
    ``clip_grad_norm``: largest gradient norm, as ``torch.nn.utils.clip_grad_norm_`` would limit it,
    over all workers and daemons, of what ``clip_scope`` names: "global" (the default), "group" (a
    parameter group may have a "max_norm" of its own) or "layer" (each unit). It may change from
    step to step: ``optimizer.set_max_norm``. A ``clip_scope`` alone begins without a limit.
    ``loss_scaling``: dynamic loss scale kept by the daemons, ``True`` for the defaults; call
    ``optimizer.scale(loss).backward()``; ``backward`` without it raises ``StateError``.
    ``update_mode``: "immediate", "deferred" or "speculative", see ``luwu.JobSpec``; "auto" takes
    "deferred" for clipping and loss scaling and else "immediate".
    ``connect``: makes the session from the job's spec, instead of ``endpoints``.

    Rank ``settings.loader_rank`` loads the module's present weights unless the job has its weights
    already (a restart; with restart count 0 and a step above 0 a ``UserWarning`` says so); others'
    weights are ignored. Daemons that are down and a job that is recovering are waited for, up to
    ``settings.open_timeout_s``, with a line in the log "luwu". Frozen means ``requires_grad``
    is False now. Raises ``ArgumentError``,
    ``StateError`` and the errors of ``luwu.Session``; the module is then as it was before.

    Outside of a unit's forward and backward, using its weights raises ``StateError``: a unit must
    contain all modules that use them, such as an ``nn.MultiheadAttention`` as a whole. Forwards
    under ``no_grad`` may come from several threads (they take turns), training from one at a time.
    Second derivatives (``create_graph=True``) are not supported.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
    _check(missing_grad, micro_batches, optimizer)
    facade = _facade(module, optimizer, param_groups, clip_scope, clip_grad_norm)
    plans = plan_units(module, units, facade.param_groups)
    check_module(module, plans)
    spec = job_spec(JobOptions(
        name=job, world_size=world_size, optimizer=_with_momentum(optimizer, facade),
        groups=len(facade.param_groups), served=DType.parse(wire),
        gradients=DType.parse(gradient_wire or wire), clip_scope=facade.clip_scope,
        loss_scaling=LossScaling() if loss_scaling is True else loss_scaling or None,
        update_mode=update_mode, accumulates=micro_batches > 1 or settings.accumulates), plans,
        settings)
    session = connect(spec) if connect is not None else _open(endpoints, spec, rank, settings)
    _move(facade, module, session, plans, Move(
        settings, micro_batches, missing_grad, rank == settings.loader_rank,
        endpoints if connect is None else None))
    return facade


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, tuple(KINDS)):
        return
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    known = ", ".join(f"luwu.{each.__name__}" for each in KINDS)
    raise ArgumentError(
        f"optimizer: {kind.__module__}.{kind.__name__} is not one of LuWu's, which the daemons "
        f"run; pass an instance of {known}, such as luwu.AdamW(lr=1e-3)")


def _open(endpoints: str | Sequence[str], spec: JobSpec, rank: int, settings: Settings) -> Session:
    """Waits for daemons that are not up yet and for a job that is recovering, and says so."""
    progress = _Progress(spec.name, settings.open_timeout_s)
    return wait(lambda left_s: Session(
        endpoints, spec, rank, restart_count=settings.restart_count, transport=settings.transport,
        tls_ca=settings.tls_ca, tls_certificate=settings.tls_certificate, tls_key=settings.tls_key,
        verify=settings.verify, timeout_s=left_s), settings.open_timeout_s, progress.tell)


class _Progress:
    """Logs what ``offload`` waits for: each new reason, and the same one now and then."""

    def __init__(self, job: str, timeout_s: float) -> None:
        self._job, self._timeout_s = job, timeout_s
        self._told, self._told_at = "", 0.0

    def tell(self, error: LuwuError, left_s: float) -> None:
        now, kind = time.monotonic(), type(error).__name__
        if kind == self._told and now - self._told_at < _TELL_S:
            return
        self._told, self._told_at = kind, now
        _log.warning("job %r: waiting for its daemons, for %.0f of %.0f s more: %s", self._job,
                     left_s, self._timeout_s, error)


def _facade(module: torch.nn.Module, optimizer: HyperParameters,
            param_groups: Sequence[dict[str, Any]] | None, clip_scope: str | None,
            clip_grad_norm: float | None) -> OffloadedOptimizer:
    if clip_scope is None:
        clip_scope = "none" if clip_grad_norm is None else "global"
    if param_groups is None:
        param_groups = [{"params": [p for p in module.parameters() if p.requires_grad]}]
    return OffloadedOptimizer(
        param_groups, optimizer, clip_scope, clip_limit(clip_grad_norm, "clip_grad_norm"))


@dataclass(frozen=True)
class Move:
    """How ``_move`` goes about it. ``endpoints``: ``None`` when the session is not ours to undo."""

    settings: Settings
    micro_batches: int
    missing_grad: str
    loader: bool
    endpoints: str | Sequence[str] | None


def _move(facade: OffloadedOptimizer, module: torch.nn.Module, session: Session,
          plans: Sequence[UnitPlan], how: Move) -> None:
    """Loads the weights, ties the module to the facade and lets its memory go, or, on any failure,
    leaves the module as it was and the daemons without this session."""
    before = [(tensor.parameter, tensor.parameter.data, tensor.parameter.grad)
              for plan in plans for tensor in plan.tensors]
    try:
        _load(session, plans, how.loader, how.settings.load_timeout_s)
        if how.loader and resolved_restart_count(how.settings.restart_count) == 0:
            _warn_of_ignored_weights(session)
        units = [Unit(plan, index) for index, plan in enumerate(plans)]
        facade.attach(module, session, units, how.settings, how.micro_batches, how.missing_grad)
        _release(units)
    except BaseException:
        facade.abandon()
        for parameter, data, grad in before:
            unseal(parameter)
            parameter.data, parameter.grad = data, grad
        _leave(session, how.endpoints, how.settings)
        raise


def _check(missing_grad: str, micro_batches: int, optimizer: Any) -> None:
    if missing_grad not in ("error", "zero"):
        raise ArgumentError(f"missing_grad {missing_grad!r} is not 'error' or 'zero'")
    if micro_batches < 1:
        raise ArgumentError(f"micro_batches is {micro_batches}; it must be at least 1")
    _check_optimizer(optimizer)


def _leave(session: Session, endpoints: str | Sequence[str] | None, settings: Settings) -> None:
    """Undoes opening the session, and creating the job if it did and nobody else has joined."""
    try:
        created = session.info().created
        session.close()
        if created and endpoints is not None:
            delete_job(endpoints, session.job.name, timeout_s=settings.call_timeout_s)
    except LuwuError:
        session.close()  # the error that led here matters, not this one


def _release(units: Sequence[Unit]) -> None:
    for unit in units:
        for tensor in unit.plan.tensors:
            tensor.parameter.grad = None
        for storage in unit.storages:
            storage.release()


@dataclass(frozen=True)
class JobOptions:
    """What ``offload`` was asked for, in the words of ``luwu.JobSpec``."""

    name: str
    world_size: int
    optimizer: HyperParameters
    groups: int
    served: DType
    gradients: DType
    clip_scope: str = "none"
    loss_scaling: LossScaling | None = None
    update_mode: str = "auto"
    accumulates: bool = False


def job_spec(options: JobOptions, plans: Sequence[UnitPlan], settings: Settings) -> JobSpec:
    """The job of a planned module."""
    try:
        return JobSpec(
            **vars(options), layers=tuple(plan.layer() for plan in plans),
            reduction=settings.reduction, on_non_finite=settings.on_non_finite,
            keep_undo_state=settings.keep_undo_state, held=DType.parse(settings.held),
            shard_elements=settings.shard_elements, slots_per_worker=settings.slots_per_worker,
            overflow_bytes=settings.overflow_bytes, durable_every=settings.durable_every,
            durability=settings.durability, memory_bytes=settings.memory_bytes)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def _with_momentum(optimizer: HyperParameters, facade: OffloadedOptimizer) -> HyperParameters:
    """SGD keeps a momentum buffer for all groups when any of them uses momentum."""
    if isinstance(optimizer, SGD):
        for group in facade.param_groups:
            if group["momentum"] != 0:
                return replace(optimizer, momentum=float(group["momentum"]))
    return optimizer


def _load(session: Session, plans: Sequence[UnitPlan], loader: bool, timeout_s: float) -> None:
    if loader and not session.info().loaded:
        for index, plan in enumerate(plans):
            session.load(index, layer_values(plan), timeout_s=timeout_s)
        session.finish_load(timeout_s=timeout_s)
    repeat(lambda: session.wait_loaded(_WAIT_S), timeout_s)


def _warn_of_ignored_weights(session: Session) -> None:
    step, name = session.current_step, session.job.name
    if step > 0:
        warnings.warn(
            f"job {name!r} goes on at step {step}; the weights of this process are ignored. Delete "
            f"the job to start over (luwuctl delete {name})", UserWarning, stacklevel=4)
