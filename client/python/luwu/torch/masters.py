"""Whole weights: from the module into the daemons, and back as ordinary tensors."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch

from luwu.errors import StateError
from luwu.session import Session
from luwu.torch.plan import TensorPlan, UnitPlan
from luwu.torch.released import unseal


def layer_values(plan: UnitPlan) -> np.ndarray:
    """The unit's parameters as the fp32 values of its layer; gaps are zero."""
    values = torch.zeros(plan.elements, dtype=torch.float32)
    with torch.no_grad():
        for tensor in plan.tensors:
            values[tensor.offset:tensor.offset + tensor.elements].copy_(
                tensor.parameter.detach().reshape(-1))
    return values.numpy()


class Masters:
    """Reads the fp32 master weights of all units."""

    def __init__(self, session: Session, root: torch.nn.Module, plans: Sequence[UnitPlan],
                 timeout_s: float) -> None:
        self._session = session
        self._root = root
        self._plans = plans
        self._timeout_s = timeout_s
        self._places: dict[int, tuple[int, TensorPlan]] = {  # by id of the parameter
            id(tensor.parameter): (layer, tensor)
            for layer, plan in enumerate(plans) for tensor in plan.tensors}
        self._handles: list[Any] = []
        self._guarded: list[torch.nn.Module] = []
        try:
            self._guard()
        except BaseException:
            self.unguard()
            raise

    def read(self, quantity: str = "master") -> dict[str, torch.Tensor]:
        """Name to fp32 tensor, for every offloaded parameter. Any one worker may call it alone."""
        found = {}
        for index, plan in enumerate(self._plans):
            values = torch.from_numpy(
                self._session.read(index, quantity, timeout_s=self._timeout_s))
            for tensor in plan.tensors:
                part = values[tensor.offset:tensor.offset + tensor.elements]
                found[tensor.name] = part.clone().view(tensor.parameter.shape)
        return found

    def restore(self, values: dict[str, torch.Tensor]) -> None:
        """Gives the parameters ordinary memory with the weights that ``read`` returned."""
        for plan in self._plans:
            for tensor in plan.tensors:
                unseal(tensor.parameter)
                tensor.parameter.data = values[tensor.name].to(
                    tensor.parameter.device, tensor.parameter.dtype)

    # ---- module.state_dict() and friends --------------------------------------------------------

    def _guard(self) -> None:
        """Every module that has offloaded parameters of its own is guarded, so that calls on parts
        of the whole module are covered too."""
        module: Any
        for module in self._root.modules():
            if any(id(parameter) in self._places for parameter in module.parameters(recurse=False)):
                self._handles.append(module._register_state_dict_hook(self._fill_state_dict))
                self._handles.append(module._register_load_state_dict_pre_hook(_refuse_load))
                module.__deepcopy__ = _refuse_deepcopy
                module._apply = _refuse_apply
                self._guarded.append(module)

    def unguard(self) -> None:
        """Removes the hooks from the module."""
        for handle in self._handles:
            handle.remove()
        for module in self._guarded:
            del module.__deepcopy__, module._apply
        self._handles.clear()
        self._guarded.clear()

    def _fill_state_dict(self, module: torch.nn.Module, state: dict[str, Any], prefix: str,
                         _metadata: Any) -> None:
        """``state_dict()`` gives the real weights, in the parameters' dtypes."""
        for name, parameter in module.named_parameters(recurse=False):
            place = self._places.get(id(parameter))
            if place is not None and prefix + name in state:
                layer, tensor = place
                values = self._session.read(
                    layer, "master", tensor.offset, tensor.elements, self._timeout_s)
                state[prefix + name] = torch.from_numpy(values).view(parameter.shape).to(
                    parameter.device, parameter.dtype)


def _refuse_load(*_: Any) -> None:
    raise StateError(
        "load_state_dict() on an offloaded module: its weights live in the daemons. Load the "
        "weights before offload()")


def _refuse_deepcopy(_memo: Any) -> Any:
    raise StateError(
        "an offloaded module cannot be copied: its weights live in the daemons. Use "
        "optimizer.full_state_dict() for a copy of the weights")


def _refuse_apply(*_args: Any, **_kwargs: Any) -> Any:
    raise StateError(
        "an offloaded module cannot be moved or converted (to(), half(), share_memory(), ...); do "
        "it before offload()")

