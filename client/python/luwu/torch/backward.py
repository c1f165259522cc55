"""The backward pass: gradients leave for the daemons as soon as they are final.

One mechanism for torch 1.13 and 2.x. A hook on a parameter's AccumulateGrad node runs when the
gradient of this pass is complete in ``p.grad``. The engine's final callbacks tell the end of the
outermost pass; that they can only be queued inside of one also tells whether we are in one.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Sequence

import torch

from luwu.buffers import Segment
from luwu.errors import LuwuError, StateError, UnsupportedError
from luwu.session import Session
from luwu.torch import streams
from luwu.torch.plan import WIRE_DTYPES, TensorPlan
from luwu.torch.residency import Residency
from luwu.settings import Settings
from luwu.torch.transfer import Transfer
from luwu.torch.unit import Unit

_engine = torch.autograd.Variable._execution_engine


class Backward:
    """Collects and pushes the gradients of all units. Hooks call it on the autograd thread."""

    def __init__(self, session: Session, residency: Residency, units: Sequence[Unit],
                 settings: Settings, micro_batches: int, missing_grad: str) -> None:
        self._session = session
        self._residency = residency
        self._units = units
        self._settings = settings
        self.micro_batches = micro_batches
        self._zero_missing = missing_grad == "zero"
        self._active = False
        self._thread = 0  # that runs the active pass
        self._in_flight: deque[Unit] = deque()
        self._passes = 0  # backward passes of this step
        self._by_hand = False  # accumulate() was used in this step
        self._error: LuwuError | None = None  # the pass failed after gradients had been pushed
        self.accumulating = False
        self.scaled = session.job.loss_scaling is None  # or scale() was called in this step

    # ---- where are we ---------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """True from the first hook of this thread's backward pass to its end."""
        return self._active and self._thread == threading.get_ident()

    def inside(self) -> bool:
        """True inside of a backward pass, whose end will then be noticed. Costs about 2 ms when the
        answer is no."""
        if not self._active:
            try:
                _engine.queue_callback(self._end)
            except RuntimeError:
                return False
            self._active, self._thread = True, threading.get_ident()
        self._check_thread()
        return True

    def _check_thread(self) -> None:
        if self._active and not self.active:
            raise StateError(
                "another thread is in the backward pass of this offloaded module; train in one "
                "thread at a time")

    def recover(self) -> None:
        """Called at the start of a pass: cleans up after a backward pass that ended by an error, in
        which case the engine runs no callbacks."""
        other = self._active and not self.active and any(
            thread.ident == self._thread for thread in threading.enumerate())
        if self._active and not other and not _inside_any():
            self._active = False
            self.end_pass()
            if self._error is None and self.pushed_any:
                self._error = StateError(
                    "the last backward pass failed after gradients had been pushed, so this step "
                    "can not be repeated by this process: restart the worker, which resumes it")

    @property
    def pushed_any(self) -> bool:
        """True when gradients have left in this step."""
        return any(unit.contributions for unit in self._units)

    @property
    def passes_of_early_step(self) -> int:
        """The passes so far, if there are some but fewer than ``micro_batches`` and nothing says
        that this is meant; else 0."""
        early = self._passes < self.micro_batches and not self._by_hand
        return self._passes if early else 0

    def check(self) -> None:
        """Raises the error after which the step cannot go on."""
        self.recover()
        self._check_thread()
        if self._error is not None:
            raise self._error

    # ---- hooks ----------------------------------------------------------------------------------

    def on_gradient(self, unit: Unit, position: int) -> None:
        """The gradient of trainable tensor ``position`` is complete for this graph."""
        self.inside()
        if unit.closed:
            raise StateError(
                f"parameter {unit.trainable[position].name!r} got another gradient after unit "
                f"{unit.name!r} had been pushed and closed in this step. Run all backward passes "
                "of a step but the last inside `with optimizer.accumulate():`, or pass "
                "micro_batches to offload()")
        unit.ready.add(position)
        if unit.gradients_complete and not self._pushed_at_end(unit):
            self._push(unit)
        self.release_if_done(unit)

    def on_input_gradient(self, unit: Unit) -> None:
        """The gradient of one of the unit's inputs is complete."""
        unit.inputs_awaited -= 1
        self.release_if_done(unit)

    def release_if_done(self, unit: Unit) -> None:
        if unit.backward_done and not self._pushed_at_end(unit) and not unit.running:
            unit.held = False
            self._residency.release(unit)

    @staticmethod
    def _pushed_at_end(unit: Unit) -> bool:
        # Parameters of the root, and of a unit that ran several times, can get gradients from
        # several graphs of one pass (reentrant checkpointing).
        return unit.is_root or unit.calls > 1

    # ---- pushing --------------------------------------------------------------------------------

    def _closing(self) -> bool:
        return not self.accumulating and self._passes >= self.micro_batches - 1

    def _push(self, unit: Unit) -> None:
        self._check_scaled()
        self._finish_push(unit)  # contributions of one layer are sent one after the other
        segments = [Segment(_take_gradient(tensor), tensor.offset) for tensor in unit.trainable]
        close, stream = self._closing(), streams.current(unit.device)
        unit.pushing = Transfer(lambda: self._session.push_async(
            unit.index, segments, close, self._settings.call_timeout_s,
            **streams.argument(stream)))
        unit.contributions += 1  # only now: what was refused can be done again
        unit.closed = close
        self._in_flight.append(unit)
        while len(self._in_flight) > self._settings.pushes_in_flight:
            self._finish_push(self._in_flight[0])

    def _check_scaled(self) -> None:
        """Before anything leaves: once all gradients are there, the daemons' step is decided."""
        if self.scaled:
            return
        for unit in self._units:  # the pass does not count; a repeated one must not add to it
            unit.ready.clear()
            for tensor in unit.trainable:
                tensor.parameter.grad = None
        raise StateError(
            "backward of a loss that is not scaled, in a job with loss_scaling: call "
            "optimizer.scale(loss).backward(); gradients are divided by the loss scale")

    def _finish_push(self, unit: Unit) -> None:
        if unit.pushing is None:
            return
        try:
            unit.pushing.wait(self._settings.call_timeout_s, self._settings.worker_timeout_s)
        finally:
            unit.pushing = None
            self._in_flight.remove(unit)

    def finish_step(self) -> None:
        """Waits for all pushes and closes what is still open: without any gradient, as absent."""
        self.check()
        for unit in list(self._in_flight):
            self._finish_push(unit)
        for unit in self._units:
            if unit.trainable and not unit.closed:
                self._session.close_layer(unit.index, self._settings.call_timeout_s)
                unit.closed = True

    def forget(self) -> None:
        """The session has ended: nothing of this step will be sent any more."""
        for unit in self._units:
            if unit.pushing is not None:
                unit.pushing.settle(self._settings.call_timeout_s)
            unit.pushing = None
            for tensor in unit.trainable:
                tensor.parameter.grad = None
        self._in_flight.clear()
        self._error = None
        self._active = False

    def reset_step(self) -> None:
        """The step is committed."""
        self.end_pass()  # a forward whose backward never came
        self._passes, self._by_hand = 0, False
        self.scaled = self._session.job.loss_scaling is None
        for unit in self._units:
            unit.closed, unit.contributions = False, 0

    # ---- end of a pass --------------------------------------------------------------------------

    def _end(self) -> None:
        with self._residency.gate:
            self._end_active()

    def _end_active(self) -> None:
        self._active = False
        try:
            for unit in self._units:
                if unit.ready and not unit.gradients_complete:
                    self._fill_missing(unit)
                    self._push(unit)
                elif unit.ready and self._pushed_at_end(unit):
                    self._push(unit)
        except LuwuError as error:
            if self.pushed_any:
                self._error = error
            raise
        finally:
            self.end_pass()

    def end_pass(self) -> None:
        """Nothing of the pass that was is needed any more: all units give their memory back."""
        if any(unit.ready for unit in self._units):
            self._passes += 1
            self._by_hand |= self.accumulating
        for unit in self._units:
            unit.reset_pass()
        self._residency.release_idle()

    def _fill_missing(self, unit: Unit) -> None:
        for position, tensor in enumerate(unit.trainable):
            if position in unit.ready:
                continue
            if not self._zero_missing:
                raise StateError(
                    f"parameter {tensor.name!r} got no gradient in this backward pass, but other "
                    f"parameters of its unit {unit.name!r} did. Pass missing_grad='zero' to "
                    "offload() to count it as zero, freeze it with requires_grad_(False) before "
                    "offload(), or make it a unit of its own")
            tensor.parameter.grad = torch.zeros(
                tensor.parameter.shape, dtype=tensor.parameter.dtype, device=unit.device)


def _inside_any() -> bool:
    try:
        _engine.queue_callback(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    pass


def _take_gradient(tensor: TensorPlan) -> torch.Tensor:
    """The parameter's gradient, which from now on belongs to the push."""
    gradient = tensor.parameter.grad
    if gradient is None:
        raise StateError(
            f"the gradient of parameter {tensor.name!r} was removed during the backward pass; "
            "leave p.grad alone until it ends")
    tensor.parameter.grad = None
    if gradient.layout is not torch.strided:
        raise UnsupportedError(
            f"parameter {tensor.name!r} has a sparse gradient; use sparse=False in its module")
    if gradient.dtype not in WIRE_DTYPES:
        raise UnsupportedError(f"the gradient of parameter {tensor.name!r} is {gradient.dtype}")
    return gradient.detach().contiguous()
