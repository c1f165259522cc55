"""Tensors inside the nested values that modules take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Iterator

import torch

_DEPTH_MAX = 8  # deeper nesting is data, not a module's arguments


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples, mappings and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH_MAX:
        if isinstance(value, Mapping):
            items: Any = value.values()
        elif isinstance(value, (list, tuple)):
            items = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = [getattr(value, field.name) for field in dataclasses.fields(value)]
        else:
            return
        for item in items:
            yield from tensors_in(item, depth + 1)


def differentiable_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that take part in the present autograd graph."""
    if torch.is_grad_enabled():
        for tensor in tensors_in(value):
            if tensor.requires_grad:
                yield tensor
