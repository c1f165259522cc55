"""What a Parameter is while its weights are not in memory: an object that refuses to be read.

The same object changes its class and back, as torch's own ``UninitializedParameter`` does. Every
torch function that would look at or change the values raises ``StateError`` with the parameter's
name; shape, dtype, gradient, hooks and the like work as always. A parameter of a class of its own
keeps it; such a one reads as NaN.
"""

from __future__ import annotations

from typing import Any

import torch

from luwu.errors import StateError

# What does not touch the values: names of functions, methods and properties.
_HARMLESS = frozenset({
    "__dir__", "__hash__", "__len__", "_backward_hooks", "_base", "_grad", "_grad_fn",
    "_post_accumulate_grad_hooks", "_version", "device", "dim", "dim_order", "dtype",
    "element_size", "get_device", "grad", "grad_dtype", "grad_fn", "itemsize", "layout", "name",
    "names", "nbytes", "ndim", "ndimension", "nelement", "numel", "output_nr", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad", "requires_grad_", "retain_grad",
    "retains_grad", "shape", "size", "storage_offset", "stride",
})
_NAME = "_luwu_name"


def _refuse(cls: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The ``__torch_function__`` of both classes."""
    called, kind = getattr(func, "__name__", str(func)), ""
    if called in ("__get__", "__set__", "__delete__"):
        called, kind = getattr(func.__self__, "__name__", "?"), called
    if called in ("__repr__", "__str__", "__format__"):
        return f"{_name_of(args[0])}, shape {tuple(args[0].shape)}, not in memory"
    sets_data = called == "data" and kind != "__get__"
    if called in ("data", "detach") and not sets_data:
        with torch._C.DisableTorchFunction():
            released = torch.Tensor._make_subclass(ReleasedTensor, func(*args, **(kwargs or {})))
        released.__dict__[_NAME] = _name_of(args[0])
        return released
    if called in _HARMLESS or (called.startswith("is_") and called != "is_nonzero"):
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))
    raise StateError(
        f"{called}() needs the weights of {_first_name(args, kwargs)}, which are not in memory "
        "here: a unit has them only in the forward and backward of its module. If another module "
        "uses this parameter in its forward (as F.linear(x, other.weight) or "
        "nn.MultiheadAttention do), choose `units` of offload() such that both are in one unit. "
        "To read weights use optimizer.materialized() or optimizer.full_state_dict(); they can be "
        "written only before offload()")


class ReleasedTensor(torch.Tensor):
    """``p.data`` and ``p.detach()`` of a released parameter."""

    __torch_function__ = classmethod(_refuse)  # type: ignore[assignment]


class ReleasedParameter(torch.nn.Parameter):
    """A parameter whose weights are in the daemons only."""

    __torch_function__ = classmethod(_refuse)  # type: ignore[assignment]


def seal(parameter: Any, name: str) -> None:
    """From now on reading the values is an error."""
    if type(parameter) is torch.nn.Parameter:
        parameter.__dict__[_NAME] = name
        parameter.__class__ = ReleasedParameter


def unseal(parameter: Any) -> None:
    """The parameter is an ordinary one again."""
    if type(parameter) is ReleasedParameter:
        parameter.__class__ = torch.nn.Parameter
        parameter.__dict__.pop(_NAME, None)


def is_sealed(tensor: Any) -> bool:
    """True between ``seal`` and ``unseal``, also for what ``detach`` gave."""
    return isinstance(tensor, (ReleasedParameter, ReleasedTensor))


def _name_of(tensor: Any) -> str:
    return str(tensor.__dict__.get(_NAME, "an offloaded parameter"))


def _first_name(args: Any, kwargs: Any) -> str:
    waiting = [args, kwargs or {}]
    while waiting:
        value = waiting.pop(0)
        if is_sealed(value):
            return _name_of(value)
        if isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
    return "an offloaded parameter"
