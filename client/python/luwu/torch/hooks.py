"""Ties a module to the runtime: wraps the ``forward`` of units in place.

``forward`` is wrapped (and not hooked) because keyword arguments must be seen in torch 1.13 too,
and because a forward that raises must give its memory back.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch

from luwu.errors import StateError, UnsupportedError
from luwu.torch.backward import Backward
from luwu.torch.predictor import EVAL, TRAIN
from luwu.torch.residency import Residency
from luwu.torch.steps import Steps
from luwu.torch.tree import differentiable_in
from luwu.torch.unit import Unit


class Hooks:
    """Everything that happens around a unit's forward and before its backward."""

    def __init__(self, root: torch.nn.Module, units: Sequence[Unit], residency: Residency,
                 backward: Backward, steps: Steps) -> None:
        self._root = root
        self._units = units
        self._residency = residency
        self._backward = backward
        self._steps = steps
        self._root_unit = next((unit for unit in units if unit.is_root), None)
        self._wrapped: list[torch.nn.Module] = []
        self._mode: str | None = None  # of the root forward on the stack
        try:
            self._install()
        except BaseException:
            self.remove()
            raise

    # ---- installing -----------------------------------------------------------------------------

    def _install(self) -> None:
        self._wrap(self._root, self._run_root)
        for unit in self._units:
            if not unit.is_root:
                self._wrap(unit.plan.module, functools.partial(self._run, unit))
            for position, tensor in enumerate(unit.trainable):
                # Needs the parameter's own memory: hooks come before its release. The
                # node is kept because the parameter refers to it weakly.
                view: Any = tensor.parameter.expand_as(tensor.parameter)
                node = view.grad_fn.next_functions[0][0]
                node.register_hook(functools.partial(self._on_gradient, unit, position))
                unit.accumulate_nodes.append(node)
        if self._root_unit is not None:
            self._guard_root_parameters(self._root_unit)

    def _guard_root_parameters(self, root: Unit) -> None:
        """Submodules that own root parameters also work when they are called by themselves."""
        mine = {id(tensor.parameter) for tensor in root.plan.tensors}
        for module in self._root.modules():
            if module not in self._wrapped and any(
                    id(parameter) in mine for parameter in module.parameters(recurse=False)):
                self._wrap(module, functools.partial(self._run_guarded, root))

    def _wrap(self, module: torch.nn.Module, run: Callable[..., Any]) -> None:
        forward = module.forward

        @functools.wraps(forward)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.jit.is_tracing():
                raise UnsupportedError(
                    "an offloaded module cannot be traced: the trace would keep none of its "
                    "weights. Trace it before offload() or after optimizer.restore()")
            with self._residency.gate:
                return run(forward, args, kwargs)

        module.forward = wrapper
        self._wrapped.append(module)

    def remove(self) -> None:
        """Unwraps everything."""
        for module in self._wrapped:
            del module.forward
        self._wrapped.clear()
        for unit in self._units:
            unit.accumulate_nodes.clear()

    # ---- forward --------------------------------------------------------------------------------

    def _present_mode(self) -> str:
        if self._mode is not None:
            return self._mode
        return TRAIN if torch.is_grad_enabled() or self._backward.active else EVAL

    def _run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._backward.recover()
        if self._mode is not None or (torch.is_grad_enabled() and self._backward.inside()):
            return self._run_unit_of_root(forward, args, kwargs)
        mode = TRAIN if torch.is_grad_enabled() else EVAL
        self._residency.predictor.begin(mode)
        self._mode = mode
        try:
            return self._run_unit_of_root(forward, args, kwargs)
        finally:
            self._mode = None
            if mode == EVAL:
                self._residency.release_idle()

    def _run_unit_of_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._root_unit is None:
            return forward(*args, **kwargs)
        return self._run(self._root_unit, forward, args, kwargs)

    def _run_guarded(self, root: Unit, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if root.resident:
            return forward(*args, **kwargs)
        return self._run(root, forward, args, kwargs)

    def _run(self, unit: Unit, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        mode = self._present_mode()
        # Below a root forward nothing is recomputed, or hooks have told of the backward already.
        recomputing = mode == TRAIN and (
            self._backward.active if self._mode is not None else self._backward.inside())
        if mode == TRAIN:
            self._backward.check()
            self._steps.begin()
            unit.held = unit.held or unit.is_root or recomputing
            unit.calls += not recomputing
        self._residency.enter(unit, mode)
        self._watch_inputs(unit, (args, kwargs))
        unit.running += 1
        try:
            outputs = forward(*args, **kwargs)
        finally:
            unit.running -= 1
            if not unit.busy and not self._residency.needed_next(unit, mode):
                self._residency.release(unit)
        for tensor in differentiable_in(outputs):
            _hook(unit, tensor, functools.partial(
                self._before_backward, unit, self._steps.current))
        return outputs

    def _watch_inputs(self, unit: Unit, inputs: Any) -> None:
        if unit.is_root:
            return
        for tensor in differentiable_in(inputs):
            _hook(unit, tensor, functools.partial(self._on_input_gradient, unit))
            unit.inputs_awaited += 1

    # ---- backward -------------------------------------------------------------------------------

    def _before_backward(self, unit: Unit, step: int, _gradient: torch.Tensor) -> None:
        with self._residency.gate:
            if torch.is_grad_enabled():
                raise UnsupportedError(
                    f"backward with create_graph=True came through unit {unit.name!r}: second "
                    "derivatives of an offloaded module are not supported")
            if step != self._steps.current:
                raise StateError(
                    f"backward of a forward of step {step} in step {self._steps.current}: the "
                    f"weights of unit {unit.name!r} have changed since. Run the forward again")
            self._backward.inside()
            if not unit.held or not unit.resident:
                unit.held = True
                self._residency.enter(unit, TRAIN)

    def _on_gradient(self, unit: Unit, position: int, *_: Any) -> None:
        with self._residency.gate:
            self._backward.on_gradient(unit, position)

    def _on_input_gradient(self, unit: Unit, _gradient: torch.Tensor) -> None:
        with self._residency.gate:
            self._backward.on_input_gradient(unit)


def _hook(unit: Unit, tensor: Any, call: Callable[[torch.Tensor], None]) -> None:
    """Calls when the tensor's gradient is known. Hooks on tensors of the graph go with the graph;
    those on leaves, which may live for ever, are taken back at the end of the pass."""
    handle = tensor.register_hook(call)
    if tensor.is_leaf:
        unit.leaf_hooks.append(handle)
