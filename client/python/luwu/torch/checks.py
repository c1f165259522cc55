"""What a module must be for ``offload``; looked at before anything is changed."""

from __future__ import annotations

from typing import Iterable, Sequence

import torch

from luwu.errors import ArgumentError, StateError
from luwu.torch.plan import UnitPlan
from luwu.torch.storage import is_placeholder


def check_module(module: torch.nn.Module, plans: Sequence[UnitPlan]) -> None:
    """Raises ``StateError`` or ``ArgumentError``, which name the submodule and what to do."""
    for plan in plans:
        for tensor in plan.tensors:
            _check_forward(module, plan, tensor.name)
            if is_placeholder(tensor.parameter):
                raise StateError(
                    f"parameter {tensor.name!r} has no weights: they went to the daemons with an "
                    "earlier offload(), and close() does not bring them back. Call "
                    "optimizer.restore() before close(), or build the module anew")
    units = {id(plan.module): plan.name for plan in plans if not plan.is_root}
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.MultiheadAttention) and id(part.out_proj) in units:
            raise ArgumentError(
                f"units: {units[id(part.out_proj)]!r} cannot be a unit of its own, since "
                f"nn.MultiheadAttention uses its weights without calling it. Make the attention "
                f"{name or 'module'!r} or a module around it the unit, and leave out_proj out, for "
                "instance units=lambda name, m: isinstance(m, (nn.MultiheadAttention, nn.Linear)) "
                "and not name.endswith('out_proj')")
        if part is module or id(part) in units:
            _check_hooks(name, part._forward_pre_hooks.values())


def _check_forward(root: torch.nn.Module, plan: UnitPlan, parameter: str) -> None:
    """No module that will be wrapped may have a ``forward`` on the instance."""
    owner = root.get_submodule(parameter.rpartition(".")[0])
    for module in [root, plan.module] + ([owner] if plan.is_root else []):
        if "forward" in vars(module):
            raise StateError(
                f"{type(module).__name__}.forward is already replaced on the instance (offloaded "
                "twice, or by another tool); offload() must be the first one")


def _check_hooks(name: str, hooks: Iterable[object]) -> None:
    for hook in hooks:
        if type(hook).__module__.startswith("torch.nn.utils."):
            raise ArgumentError(
                f"units: {name or 'the module itself'!r} cannot be a unit: "
                f"{type(hook).__name__} of torch.nn.utils computes its weight before its forward "
                "begins. Make a module around it the unit, or use torch.nn.utils.parametrizations")
