"""The optimizer facade: looks like ``torch.optim.Optimizer``, holds no state."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

import torch

from luwu.errors import JobFailedError, StateError
from luwu.session import CommitResult, Session
from luwu.specs import SGD, AdamW, HyperParameters
from luwu.torch.backward import Backward
from luwu.torch.hooks import Hooks
from luwu.torch.masters import Masters
from luwu.torch.residency import Residency
from luwu.torch.settings import Settings
from luwu.torch.steps import Steps
from luwu.torch.unit import Unit


@dataclass(frozen=True)
class StepOutcome:
    """How ``step`` ended. ``skipped``: a gradient was not finite; ``culprit`` names layer and
    tensor, and the weights are unchanged. ``loss``: what the closure returned, if there was one."""

    step: int
    applied: bool
    culprit: str = ""
    loss: Any = None

    @property
    def skipped(self) -> bool:
        return not self.applied


def defaults_of(values: HyperParameters) -> dict[str, Any]:
    """Hyper-parameters as the ``defaults`` of a torch optimizer."""
    if isinstance(values, AdamW):
        return {"lr": values.lr, "betas": tuple(values.betas), "eps": values.eps,
                "weight_decay": values.weight_decay}
    return {"lr": values.lr, "momentum": values.momentum, "dampening": values.dampening,
            "weight_decay": values.weight_decay, "nesterov": values.nesterov}


def group_values(kind: type, group: dict[str, Any]) -> HyperParameters:
    """The present hyper-parameters of a torch parameter group."""
    if kind is AdamW:
        beta1, beta2 = group["betas"]
        return AdamW(lr=float(group["lr"]), betas=(float(beta1), float(beta2)),
                     eps=float(group["eps"]), weight_decay=float(group["weight_decay"]))
    return SGD(lr=float(group["lr"]), momentum=float(group["momentum"]),
               dampening=float(group["dampening"]), weight_decay=float(group["weight_decay"]),
               nesterov=bool(group["nesterov"]))


class OffloadedOptimizer(torch.optim.Optimizer):
    """What ``luwu.torch.offload`` returns: drives the steps of an offloaded module.

    ``param_groups`` hold lr and the like and may be edited between steps, by hand or by torch's lr
    schedulers. They travel with the step: it begins at its first training forward, and changing
    them between that and ``step()`` is an error. ``state`` is always empty. Gradients leave during
    backward, so ``torch.nn.utils.clip_grad_norm_`` and the like find none.
    """

    def __init__(self, param_groups: Sequence[dict[str, Any]], defaults: HyperParameters) -> None:
        self._kind = type(defaults)
        self._complete = False
        super().__init__(list(param_groups), defaults_of(defaults))
        self._complete = True
        self._keeps_momentum = any(group.get("momentum", 0) != 0 for group in self.param_groups)

    def attach(self, module: torch.nn.Module, session: Session, units: Sequence[Unit],
               settings: Settings, micro_batches: int, missing_grad: str) -> None:
        """Ties the facade to a module whose masters are loaded. Called once, by ``offload``."""
        self.module = module
        self.session = session
        self._units = units
        self._steps = Steps(session, settings, self.hyper_parameters)
        self._residency = Residency(session, units, settings, lambda: self._steps.current)
        self._backward = Backward(
            session, self._residency, units, settings, micro_batches, missing_grad)
        self._masters = Masters(
            session, module, [unit.plan for unit in units], settings.load_timeout_s)
        self._hooks = Hooks(module, units, self._residency, self._backward, self._steps)

    # ---- as torch.optim -------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after ``offload``: groups are part of the job."""
        if self._complete:
            raise StateError("the job's parameter groups are fixed; pass them to offload()")
        super().add_param_group(param_group)

    def step(  # type: ignore[override]
            self, closure: Callable[[], Any] | None = None) -> StepOutcome:
        """Ends the step on all workers: the daemons have updated the weights when it returns.

        Gradients have left during backward; units without any are closed as absent. Repeats for up
        to ``worker_timeout_s`` while a worker is lost or slow, then raises ``WorkerLostError`` or
        ``DeadlineError``, after which ``step()`` may be called again. ``JobFailedError`` when the
        job does not go on.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._steps.check_unchanged()
        self._steps.begin()
        self._backward.finish_step()
        step = self._steps.current
        result: CommitResult = self._steps.commit()
        if result.outcome == "failed":
            raise JobFailedError(f"step {step} failed: {result.culprit}")
        self._backward.reset_step()
        return StepOutcome(step, result.applied, result.culprit, loss)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that belong to no push. Those that were pushed are gone already."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Hyper-parameters and the step; weights: ``full_state_dict``; moments: ``moments``."""
        groups = [{key: value for key, value in group.items() if key != "params"}
                  for group in self.param_groups]
        return {"step": self.current_step, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the hyper-parameters from ``state_dict()``; the state itself is in the daemons."""
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise StateError(
                f"{len(groups)} parameter groups in the state, {len(self.param_groups)} in the job")
        for group, saved in zip(self.param_groups, groups):
            group.update({key: value for key, value in saved.items() if key != "params"})

    # ---- beyond torch.optim ---------------------------------------------------------------------

    @property
    def current_step(self) -> int:
        """The step under way or to begin next. A restarted worker goes on from here."""
        return self._steps.current

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside push their gradients without closing the step: all micro-batches
        but the last belong here. The gradients are summed; scale the losses accordingly."""
        before, self._backward.accumulating = self._backward.accumulating, True
        try:
            yield
        finally:
            self._backward.accumulating = before

    @contextlib.contextmanager
    def materialized(self) -> Iterator[None]:
        """All weights are in memory inside, for reading (generation, export). Writes are lost."""
        for unit in self._units:
            unit.running += 1
        try:
            for unit in self._units:
                self._residency.materialise(unit)
            yield
        finally:
            for unit in self._units:
                unit.running -= 1
            self._residency.release_idle()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The fp32 master weights of all offloaded parameters by name, from the daemons. One worker
        may call it alone, between two steps. ``module.state_dict()`` gives them in the module's
        dtypes, with its buffers."""
        return self._masters.read()

    def moments(self, which: int) -> dict[str, torch.Tensor]:
        """First (1) or second (2) moments by parameter name. SGD's momentum is the first."""
        return self._masters.read({1: "moment1", 2: "moment2"}[which])

    def hyper_parameters(self) -> list[HyperParameters]:
        """The present values of all groups."""
        values = [group_values(self._kind, group) for group in self.param_groups]
        if not self._keeps_momentum and any(getattr(v, "momentum", 0) != 0 for v in values):
            raise StateError("the job keeps no momentum: pass SGD(momentum=...) to offload()")
        return values

    def resident_bytes(self) -> int:
        """Model-state bytes in this process now: weights of units in flight, gradients, optimizer
        state."""
        tensors = [p.grad for group in self.param_groups for p in group["params"]]
        tensors += [value for entry in self.state.values() for value in entry.values()
                    if isinstance(value, torch.Tensor)]
        held = sum(t.numel() * t.element_size() for t in tensors if t is not None)
        return int(held) + sum(unit.nbytes for unit in self._units)

    @property
    def prefetch_hits(self) -> int:
        """Units needed in the predicted order since ``offload``."""
        return self._residency.predictor.hits

    @property
    def prefetch_misses(self) -> int:
        """Wrong guesses since ``offload``."""
        return self._residency.predictor.misses

    def restore(self) -> None:
        """Turns the module back into an ordinary one with the present weights; then ``close``."""
        self._detach()
        self._masters.restore()
        self.session.close()

    def close(self) -> None:
        """Leaves the job. The module's weights are gone from this process (they read as NaN)."""
        self._detach()
        self.session.close()

    def _detach(self) -> None:
        self._hooks.remove()
        self._masters.unguard()
        self._backward.reset_step()
