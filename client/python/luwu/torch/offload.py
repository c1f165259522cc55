"""``offload``: a module's weights and optimizer state move into the daemons."""

from __future__ import annotations

import os
from typing import Any, Callable, Sequence

import torch

from luwu.errors import ArgumentError
from luwu.session import Session
from luwu.specs import SGD, AdamW, DType, HyperParameters, JobSpec
from luwu.torch.masters import layer_values
from luwu.torch.optimizer import OffloadedOptimizer, defaults_of, group_values
from luwu.torch.plan import UnitPlan, UnitRule, plan_units
from luwu.torch.settings import Settings
from luwu.torch.transfer import repeat
from luwu.torch.unit import Unit

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
            missing_grad: str = "error", settings: Settings = Settings(),
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
    ``optimizer``: kind and default hyper-parameters. ``param_groups``: as for torch optimizers.
    ``wire``: dtype of weights on the wire ("bf16", "fp32", "fp16"); ``gradient_wire`` likewise,
    default the same. Parameters keep their own dtype (float32, bfloat16 or float16).
    ``micro_batches``: backward passes in each step; or use ``optimizer.accumulate()``.
    ``missing_grad``: a parameter without gradient in a unit where others have one is an "error", or
    counts as "zero". A unit without any gradient is not updated in that step, as in torch.
    ``connect``: makes the session from the job's spec, instead of ``endpoints``.

    Rank ``settings.loader_rank`` loads the module's present weights unless the job has its weights
    already (a restart); the others' initial weights are ignored. Frozen means ``requires_grad`` is
    False now. Raises ``ArgumentError`` and the errors of ``luwu.Session``.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
    if missing_grad not in ("error", "zero"):
        raise ArgumentError(f"missing_grad {missing_grad!r} is not 'error' or 'zero'")
    if micro_batches < 1:
        raise ArgumentError(f"micro_batches is {micro_batches}; it must be at least 1")
    if param_groups is None:
        param_groups = [{"params": [p for p in module.parameters() if p.requires_grad]}]
    facade = OffloadedOptimizer(param_groups, optimizer)
    plans = plan_units(module, units, facade.param_groups)
    spec = job_spec(
        job, world_size, plans, _with_momentum(optimizer, facade), len(facade.param_groups),
        DType.parse(wire), DType.parse(gradient_wire or wire), settings)
    session = connect(spec) if connect is not None else Session(
        endpoints, spec, rank, restart_count=settings.restart_count, transport=settings.transport,
        verify=settings.verify, timeout_s=settings.open_timeout_s)
    try:
        _load(session, plans, rank == settings.loader_rank, settings.load_timeout_s)
    except BaseException:
        session.close()
        raise
    unit_list = [Unit(plan, index) for index, plan in enumerate(plans)]
    for unit in unit_list:
        for tensor in unit.plan.tensors:
            tensor.parameter.grad = None
        for storage in unit.storages:
            storage.release()
    facade.attach(module, session, unit_list, settings, micro_batches, missing_grad)
    return facade


def job_spec(name: str, world_size: int, plans: Sequence[UnitPlan], optimizer: HyperParameters,
             groups: int, served: DType, gradients: DType, settings: Settings) -> JobSpec:
    """The job of a planned module."""
    return JobSpec(
        name=name, world_size=world_size, layers=tuple(plan.layer() for plan in plans),
        optimizer=optimizer, groups=groups, served=served, gradients=gradients,
        reduction=settings.reduction, on_non_finite=settings.on_non_finite,
        keep_undo_state=settings.keep_undo_state, shard_elements=settings.shard_elements,
        slots_per_worker=settings.slots_per_worker, overflow_bytes=settings.overflow_bytes)


def _with_momentum(optimizer: HyperParameters, facade: OffloadedOptimizer) -> HyperParameters:
    """SGD keeps a momentum buffer for all groups when any of them uses momentum."""
    if isinstance(optimizer, SGD):
        for group in facade.param_groups:
            if group["momentum"] != 0:
                return group_values(SGD, {**defaults_of(optimizer), **group})
    return optimizer


def _load(session: Session, plans: Sequence[UnitPlan], loader: bool, timeout_s: float) -> None:
    if loader and not session.info().loaded:
        for index, plan in enumerate(plans):
            session.load(index, layer_values(plan), timeout_s=timeout_s)
        session.finish_load(timeout_s=timeout_s)
    repeat(lambda: session.wait_loaded(_WAIT_S), timeout_s)
