"""The optimizer facade: looks like ``torch.optim.Optimizer``, holds no state."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Sequence

import torch

from luwu.errors import ArgumentError, JobFailedError, StateError
from luwu.session import CommitResult, Session
from luwu.optimizers import HyperParameters
from luwu.torch.backward import Backward
from luwu.torch.hooks import Hooks
from luwu.torch.masters import Masters
from luwu.torch.residency import Residency
from luwu.settings import Settings
from luwu.torch.steps import GroupValues, Steps
from luwu.torch.transfer import repeat
from luwu.torch.unit import Unit


_WAIT_S = 5.0  # how long Ctrl-C may go unnoticed


@dataclass(frozen=True)
class StepOutcome:
    """How ``step`` ended. ``skipped``: a gradient was not finite; ``culprit`` names layer and
    tensor, and the weights are unchanged. ``loss``: what the closure returned, if there was one.
    ``grad_norm``, ``clip_factor``, ``loss_scale`` (of the next step): as in ``luwu.CommitResult``.
    """

    step: int
    applied: bool
    culprit: str = ""
    loss: Any = None
    grad_norm: float = math.nan
    clip_factor: float = 1.0
    loss_scale: float = 1.0

    @property
    def skipped(self) -> bool:
        return not self.applied


def group_values(defaults: HyperParameters, group: dict[str, Any]) -> HyperParameters:
    """The present hyper-parameters of a torch parameter group."""
    values = {name: bool(group[name]) if isinstance(value, bool) else _plain(group[name])
              for name, value in defaults.step_values().items()}
    return replace(defaults, **values)


def _plain(value: Any) -> Any:
    """Numbers of any library as Python's."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    return float(value)


def clip_limit(value: float | None, what: str) -> float:
    """A limit of a norm as the daemons take it: 0 for none, which infinity means in torch."""
    limit = float(value or 0.0)
    if math.isnan(limit) or limit < 0:
        raise ArgumentError(f"{what} is {limit}; it must not be negative or NaN")
    return 0.0 if math.isinf(limit) else limit


class OffloadedOptimizer(torch.optim.Optimizer):
    """What ``luwu.torch.offload`` returns: drives the steps of an offloaded module.

    ``param_groups`` hold lr and the like and may be edited between steps, by hand or by torch's lr
    schedulers. They travel with the step: it begins at its first training forward, and changing
    them between that and ``step()`` is an error. ``state`` is always empty. Gradients leave during
    backward, so ``torch.nn.utils.clip_grad_norm_`` and the like find none: the daemons clip, to the
    groups' "max_norm" (``set_max_norm``), and scale the loss's gradients back (``scale``).
    """

    def __init__(self, param_groups: Sequence[dict[str, Any]], defaults: HyperParameters,
                 clip_scope: str = "none", max_norm: float = 0.0) -> None:
        self._spec = defaults
        self.clip_scope = clip_scope
        self._last: StepOutcome | None = None
        self._complete = False
        self._masters: Masters | None = None
        self._hooks: Hooks | None = None
        limit = {} if clip_scope == "none" else {"max_norm": max_norm}
        if clip_scope == "none" and max_norm:
            raise ArgumentError("clip_grad_norm is given with clip_scope 'none'")
        super().__init__(list(param_groups), {**defaults.step_values(), **limit})
        self._complete = True
        self._keeps_momentum = any(group.get("momentum", 0) != 0 for group in self.param_groups)

    def attach(self, module: torch.nn.Module, session: Session, units: Sequence[Unit],
               settings: Settings, micro_batches: int, missing_grad: str) -> None:
        """Ties the facade to a module whose masters are loaded. Called once, by ``offload``."""
        self.module = module
        self.session = session
        self._units = units
        self._settings = settings
        self._scales_loss = session.job.loss_scaling is not None
        self._warned_of_early_step = False
        self._steps = Steps(session, settings, self._group_values)
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
        """Ends the step on all workers and says how it ended. The daemons have updated the weights
        when it returns or, with deferred updates, are about to: the next forward waits for each
        unit's.

        Gradients have left during backward; units without any are closed as absent. After fewer
        backward passes than ``micro_batches`` the step ends with those (a ``UserWarning``, once,
        unless one of them ran inside ``accumulate()``). Repeats for up
        to ``worker_timeout_s`` while a worker is lost or slow, then raises ``WorkerLostError`` or
        ``DeadlineError``, after which ``step()`` may be called again. ``JobFailedError`` when the
        job does not go on.
        """
        self._check_weights_unused("step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._residency.gate:
            return self._step(loss)

    def _check_weights_unused(self, what: str) -> None:
        with self._residency.gate:
            if any(unit.running for unit in self._units):
                raise StateError(
                    f"{what} inside `with optimizer.materialized():` or inside a forward, which "
                    "would go on with old weights: leave it first")

    def _step(self, loss: Any) -> StepOutcome:
        self._check_weights_unused("step()")
        self._steps.check_unchanged()
        self._warn_of_early_step()
        self._steps.begin()
        self._backward.finish_step()
        step = self._steps.current
        result: CommitResult = self._steps.commit()
        if result.outcome == "failed":
            raise JobFailedError(f"step {step} failed: {result.culprit}")
        self._backward.reset_step()
        self._last = StepOutcome(step, result.applied, result.culprit, loss, result.grad_norm,
                                 result.clip_factor, result.loss_scale)
        return self._last

    def _warn_of_early_step(self) -> None:
        passes = self._backward.passes_of_early_step
        if passes and not self._warned_of_early_step:
            self._warned_of_early_step = True
            wanted = self._backward.micro_batches
            warnings.warn(
                f"step() after {passes} of micro_batches={wanted} backward passes: the step ends "
                f"with their gradients alone. Call step() after every {wanted} passes, or run "
                "passes inside `with optimizer.accumulate():`, after which step() may come at any "
                "time. Said once", UserWarning, stacklevel=5)

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
        groups = state_dict.get("param_groups")
        if not isinstance(groups, (list, tuple)) or not all(isinstance(g, dict) for g in groups):
            raise ArgumentError(
                "load_state_dict(): there is no list 'param_groups' of dicts in it; pass what "
                "state_dict() of an offloaded optimizer returned")
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

    @property
    def last_commit(self) -> StepOutcome | None:
        """How the last step of this process ended; ``None`` before the first."""
        return self._last

    @property
    def grad_norm(self) -> float:
        """Gradient norm of the last step, over all workers and before clipping; NaN before the
        first step and when it was not finite."""
        return math.nan if self._last is None else self._last.grad_norm

    @property
    def loss_scale(self) -> float:
        """What ``scale`` multiplies with at present; 1 without loss scaling."""
        return self.session.info().loss_scale

    def scale(self, loss: Any) -> Any:
        """``loss`` (a tensor, or a list or tuple of them) times the loss scale of the step, as
        ``torch.cuda.amp.GradScaler.scale``: call backward on the result. Opens the step. With loss
        scaling, ``backward()`` is a ``StateError`` in a step without it, and may be repeated."""
        if not self._scales_loss:
            return loss
        self._steps.begin()
        self._backward.scaled = True
        factor = self.loss_scale
        if isinstance(loss, (list, tuple)):
            return type(loss)(each * factor for each in loss)
        return loss * factor

    def set_max_norm(self, max_norm: float) -> None:
        """Limits gradient norms of all groups to ``max_norm`` from the next step on (0 or infinity:
        not at all). The same as setting "max_norm" in ``param_groups``."""
        if self.clip_scope == "none":
            raise StateError("the job does not clip: pass clip_grad_norm or clip_scope to "
                             "offload()")
        limit = clip_limit(max_norm, "max_norm")
        for group in self.param_groups:
            group["max_norm"] = limit

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside push their gradients without closing the step: all micro-batches
        but the last belong here. The gradients are summed: divide each loss by their number. A step
        whose passes all ran inside is closed by ``step()``."""
        before, self._backward.accumulating = self._backward.accumulating, True
        try:
            yield
        finally:
            self._backward.accumulating = before

    @contextlib.contextmanager
    def materialized(self) -> Iterator[None]:
        """All weights are in memory inside, for reading (generation, export). Writes are lost.
        ``step()`` inside is an error, since it would leave old weights in memory."""
        gate = self._residency.gate
        with gate:
            try:
                for unit in self._units:
                    self._residency.materialise(unit)
            except BaseException:
                self._residency.release_idle()
                raise
            for unit in self._units:
                unit.running += 1
        try:
            yield
        finally:
            with gate:
                for unit in self._units:
                    unit.running -= 1
                self._residency.release_idle()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The fp32 master weights of all offloaded parameters by name, from the daemons. One worker
        may call it alone, between two steps. ``module.state_dict()`` gives them in the module's
        dtypes, with its buffers."""
        return self._reader().read()

    def _reader(self) -> Masters:
        assert self._masters is not None  # since attach()
        return self._masters

    def moments(self, which: int) -> dict[str, torch.Tensor]:
        """First (1), second (2) or third (3) state tensors by parameter name, in torch's order:
        exp_avg, exp_avg_sq, max_exp_avg_sq; momentum_buffer; sum."""
        return self._reader().read({1: "moment1", 2: "moment2", 3: "moment3"}[which])

    def hyper_parameters(self) -> list[HyperParameters]:
        """The present values of all groups."""
        values = [group_values(self._spec, group) for group in self.param_groups]
        if not self._keeps_momentum and any(getattr(v, "momentum", 0) != 0 for v in values):
            raise StateError("the job keeps no momentum: pass SGD(momentum=...) to offload()")
        return values

    def _group_values(self) -> list[GroupValues]:
        limits = [clip_limit(group.get("max_norm"), f"max_norm of parameter group {index}")
                  for index, group in enumerate(self.param_groups)]
        if self.clip_scope == "none" and any(limits):
            raise StateError("a parameter group has a max_norm, but the job does not clip: pass "
                             "clip_grad_norm or clip_scope to offload()")
        if self.clip_scope in ("global", "layer") and len(set(limits)) > 1:
            raise StateError(f"parameter groups have the max_norm {limits}; with clip_scope "
                             f"{self.clip_scope!r} they must be equal (set_max_norm)")
        return list(zip(self.hyper_parameters(), limits))

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

    def resume(self, timeout_s: float | None = None) -> int:
        """Joins the job again after ``RolledBackError``, ``NodeLostError`` or another
        ``SessionLostError``, and returns the step to go on with: feed the batches of that step
        next. It may be earlier than the one that was under way, when the job went back to a durable
        point. Waits up to ``timeout_s`` (``settings.resume_timeout_s``) for daemons that are down
        and for the job to be recovered. What was fetched, and gradients of the step that was under
        way, are dropped. ``JobFailedError`` when the job does not go on (it has failed, is lost, or
        was not kept): end the program then, the text says what to do about the job."""
        self._check_weights_unused("resume()")
        with self._residency.gate:
            self.session.close()  # ends what is under way
            self._backward.forget()
            self._residency.forget()
            self._backward.reset_step()
            self._steps.restart(self.session.reopen(
                self._settings.resume_timeout_s if timeout_s is None else timeout_s))
            repeat(lambda: self.session.wait_loaded(_WAIT_S), self._settings.load_timeout_s)
            return self._steps.current

    def restore(self) -> None:
        """Turns the module back into an ordinary one with the present weights; then ``close``."""
        self._check_weights_unused("restore()")
        with self._residency.gate:
            masters = self._reader()
            values = masters.read()
            self._detach()
            masters.restore(values)
            self.session.close()

    def close(self) -> None:
        """Leaves the job. The module's weights are gone from this process: reading them is an
        error."""
        with self._residency.gate:
            self._detach()
            self.session.close()

    def abandon(self) -> None:
        """Undoes ``attach``, whether it has finished or not. For ``offload``."""
        if self._hooks is not None:
            self._hooks.remove()
        if self._masters is not None:
            self._masters.unguard()

    def _detach(self) -> None:
        self.abandon()
        self._backward.reset_step()
