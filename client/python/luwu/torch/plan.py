"""Which parameters form which unit, and where each lies in its LuWu layer.

Pure planning: nothing here touches a tensor's contents. The plan must come out equal on all
workers, so it depends only on the module's structure and the arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence, Union

import torch

from luwu.errors import ArgumentError, UnsupportedError
from luwu.specs import DType, LayerSpec, TensorSpec

ROOT = "(root)"
ALIGN = 64  # elements; tensors start at multiples of it

WIRE_DTYPES = {
    torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16, torch.float16: DType.FLOAT16,
}

UnitRule = Union[
    Sequence[torch.nn.Module], type, tuple[type, ...], Callable[[str, torch.nn.Module], bool]
]


@dataclass
class TensorPlan:
    """One parameter's place. ``offset``: elements from the start of the layer."""

    name: str
    parameter: torch.nn.Parameter
    offset: int
    group: int
    trainable: bool

    @property
    def elements(self) -> int:
        return self.parameter.numel()


@dataclass
class UnitPlan:
    """A unit: the parameters that are fetched and pushed together. ``module`` of the root unit is
    the whole module."""

    name: str
    module: torch.nn.Module
    tensors: list[TensorPlan] = field(default_factory=list)
    elements: int = 0

    @property
    def is_root(self) -> bool:
        return self.name == ROOT

    @property
    def trainable(self) -> list[TensorPlan]:
        return [tensor for tensor in self.tensors if tensor.trainable]

    def layer(self) -> LayerSpec:
        """The unit as a layer of the job."""
        return LayerSpec(self.name, self.elements, tuple(
            TensorSpec(t.name, tuple(t.parameter.shape), t.offset, t.group, t.trainable)
            for t in self.tensors))


def select_units(module: torch.nn.Module, rule: UnitRule) -> dict[int, str]:
    """``id`` of each unit module to its name, in module order."""
    if isinstance(rule, type) or (isinstance(rule, tuple) and rule
                                  and all(isinstance(kind, type) for kind in rule)):
        kinds = rule
        chosen = {id(m) for m in module.modules() if isinstance(m, kinds) and m is not module}
    elif callable(rule) and not isinstance(rule, torch.nn.Module):
        chosen = {id(m) for name, m in module.named_modules() if m is not module and rule(name, m)}
    else:
        listed = list(rule) if isinstance(rule, Iterable) else [rule]
        inside = {id(m) for m in module.modules()}
        for item in listed:
            if not isinstance(item, torch.nn.Module):
                raise ArgumentError(
                    f"units: {type(item).__name__} is not a module; pass submodules, a class, or a "
                    "function (name, module) -> bool")
            if item is module or id(item) not in inside:
                raise ArgumentError(
                    f"units: {type(item).__name__} is not a proper submodule of the module")
        return {id(m): name for name, m in module.named_modules()
                if id(m) in {id(item) for item in listed}}
    if not chosen:
        raise ArgumentError(
            f"units: no submodule of {type(module).__name__} matches {rule!r}, so the whole model "
            "would be moved in and out as one; name the class of its blocks, or pass [] to mean it")
    return {id(m): name for name, m in module.named_modules() if id(m) in chosen}


def _owners(module: torch.nn.Module, units: dict[int, str]) -> dict[int, set[int]]:
    """``id`` of each parameter to the units it is reached through (0: outside of any)."""
    owners: dict[int, set[int]] = {}
    seen: set[tuple[int, int]] = set()

    def walk(part: torch.nn.Module, unit: int) -> None:
        unit = id(part) if id(part) in units else unit
        if (id(part), unit) in seen:
            return
        seen.add((id(part), unit))
        for parameter in part.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(unit)
        for child in part.children():
            walk(child, unit)

    walk(module, 0)
    return owners


def group_of_parameters(module: torch.nn.Module,
                        param_groups: Sequence[dict[str, Any]]) -> dict[int, int]:
    """``id`` of each parameter to its group's index. Trainable parameters must be in one group."""
    index_of: dict[int, int] = {}
    for index, group in enumerate(param_groups):
        for parameter in group["params"]:
            if index_of.setdefault(id(parameter), index) != index:
                raise ArgumentError(
                    f"param_groups: a parameter of shape {tuple(parameter.shape)} is in groups "
                    f"{index_of[id(parameter)]} and {index}")
    own = {id(parameter) for parameter in module.parameters()}
    if not index_of.keys() <= own:
        raise ArgumentError("param_groups: a parameter in them is not one of the module's")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in index_of:
            raise ArgumentError(
                f"param_groups: parameter {name!r} is in no group; add it, or freeze it with "
                "requires_grad_(False) before offload()")
    return index_of


def _check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    if parameter.dtype not in WIRE_DTYPES:
        raise UnsupportedError(
            f"parameter {name!r} is {parameter.dtype}; float32, bfloat16 and float16 can be "
            "offloaded")
    if parameter.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"parameter {name!r} is on {parameter.device}; modules on the CPU and on CUDA devices "
            "can be offloaded")
    if parameter.layout is not torch.strided:
        raise UnsupportedError(f"parameter {name!r} is sparse; only strided ones can be offloaded")


def _check_one_device(plans: Sequence[UnitPlan]) -> None:
    first = plans[0].tensors[0]
    for plan in plans:
        for tensor in plan.tensors:
            if tensor.parameter.device != first.parameter.device:
                raise UnsupportedError(
                    f"parameter {tensor.name!r} is on {tensor.parameter.device}, {first.name!r} on "
                    f"{first.parameter.device}: an offloaded module must be on one device")


def _lay_out(unit: UnitPlan) -> None:
    # Equal dtypes lie together, so that each dtype is one run of the layer and one storage.
    order = list(WIRE_DTYPES)
    unit.tensors.sort(key=lambda tensor: order.index(tensor.parameter.dtype))  # stable
    for tensor in unit.tensors:
        tensor.offset = unit.elements
        unit.elements += math.ceil(tensor.elements / ALIGN) * ALIGN


def plan_units(module: torch.nn.Module, rule: UnitRule,
               param_groups: Sequence[dict[str, Any]]) -> list[UnitPlan]:
    """Divides the module's parameters: the root unit first (when it has any), then the others in
    module order. A parameter belongs to the innermost unit around it; one that several units share
    belongs to the root. Units and parameters without elements are left out."""
    groups = group_of_parameters(module, param_groups)
    units = select_units(module, rule)
    owners = _owners(module, units)
    by_id = {id(part): part for part in module.modules()}
    plans = {0: UnitPlan(ROOT, module)}
    plans.update({key: UnitPlan(name, by_id[key]) for key, name in units.items()})
    for name, parameter in module.named_parameters():
        if parameter.numel() == 0:
            continue
        _check_parameter(name, parameter)
        owner = owners[id(parameter)]
        plan = plans[next(iter(owner)) if len(owner) == 1 else 0]
        plan.tensors.append(TensorPlan(
            name, parameter, 0, groups.get(id(parameter), 0), parameter.requires_grad))
    result = [plan for plan in plans.values() if plan.tensors]
    if not result:
        raise ArgumentError("the module has no parameters to offload")
    _check_one_device(result)
    for plan in result:
        _lay_out(plan)
    return result
