"""The memory of a unit's parameters, which comes and goes while every tensor object stays.

A unit has one flat storage per dtype. Its ``StorageImpl`` is the same for ever: releasing resizes
it to 0 bytes, materialising resizes it back, and the bytes are then fetched straight into it. Views
that autograd saved in the forward pass share that storage, so in the backward pass they see the
bytes that were fetched again. The bytes are written outside of autograd, so version counters do
not move.

While released, a parameter refuses to be read (``released``), and its ``data`` is one shared NaN in
the parameter's shape (strides 0, no storage of its own): what gets past torch's functions finds NaN
and does not crash.
"""

from __future__ import annotations

from typing import Any

import torch

from luwu.buffers import Memory, Segment
from luwu.torch.plan import WIRE_DTYPES, TensorPlan, UnitPlan
from luwu.torch.released import is_sealed, seal, unseal

_placeholders: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def raw_storage(tensor: Any) -> Any:
    """The byte storage of a tensor (torch 2: ``untyped_storage``; 1.13: inside the typed one)."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    typed = tensor.storage()
    return getattr(typed, "_storage", typed)


def placeholder(parameter: torch.Tensor) -> torch.Tensor:
    """NaN in the parameter's shape; all placeholders of a dtype and device share one element."""
    key = (parameter.dtype, parameter.device)
    nan = _placeholders.get(key)
    if nan is None:
        nan = _placeholders[key] = torch.full(
            (), float("nan"), dtype=parameter.dtype, device=parameter.device)
    return nan.expand(parameter.shape)


def is_placeholder(tensor: torch.Tensor) -> bool:
    """True for a released parameter and its data."""
    if is_sealed(tensor):
        return True
    nan = _placeholders.get((tensor.dtype, tensor.device))
    return nan is not None and raw_storage(tensor).data_ptr() == raw_storage(nan).data_ptr()


class FlatStorage:
    """The parameters of one dtype in a unit: elements ``[offset, offset + elements)`` of its layer.
    """

    def __init__(self, tensors: list[TensorPlan], end: int) -> None:
        dtype = tensors[0].parameter.dtype
        self.offset = tensors[0].offset
        self.elements = end - self.offset
        self.dtype = WIRE_DTYPES[dtype]
        flat = torch.empty(self.elements, dtype=dtype, device=tensors[0].parameter.device)
        self._raw = raw_storage(flat)
        self._bytes = self._raw.nbytes()
        self._members = []
        for tensor in tensors:
            shape = tensor.parameter.shape
            view = flat.narrow(0, tensor.offset - self.offset, tensor.elements).view(shape)
            self._members.append((tensor, view, placeholder(tensor.parameter)))

    @property
    def nbytes(self) -> int:
        """Bytes held at this moment."""
        return int(self._raw.nbytes())

    def allocate(self) -> Segment:
        """Gives the storage its memory, contents undefined, and says where it is. The parameters do
        not show it until ``attach``."""
        if self._raw.nbytes() == 0:
            self._raw.resize_(self._bytes)
        memory = Memory(self._raw.data_ptr(), self.dtype, self.elements, self._raw)
        return Segment(memory, self.offset)

    def attach(self) -> None:
        """Lets the parameters show the storage. The Parameter objects stay the same."""
        for tensor, view, _ in self._members:
            unseal(tensor.parameter)
            tensor.parameter.data = view

    def release(self) -> None:
        """Gives the memory back. Nothing may be reading or writing it."""
        for tensor, _, filler in self._members:
            unseal(tensor.parameter)
            tensor.parameter.data = filler
            seal(tensor.parameter, f"parameter {tensor.name!r}")
        self._raw.resize_(0)


def flat_storages(unit: UnitPlan) -> list[FlatStorage]:
    """One storage for each dtype in the unit, in layer order."""
    runs: list[list[TensorPlan]] = []
    for tensor in unit.tensors:
        if not runs or runs[-1][0].parameter.dtype != tensor.parameter.dtype:
            runs.append([])
        runs[-1].append(tensor)
    ends = [run[0].offset for run in runs[1:]] + [unit.elements]
    return [FlatStorage(run, end) for run, end in zip(runs, ends)]
