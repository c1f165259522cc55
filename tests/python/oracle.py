"""Comparing weights with those of plain torch.

torch's AVX kernels fuse some multiplications and additions, its plain kernels round every operation
once, as LuWu does everywhere. conftest.py chooses the plain ones (ATEN_CPU_CAPABILITY), so that a
difference in the last bit cannot grow over the steps of a training run and blur the comparison.
"""

from __future__ import annotations

from typing import Mapping

import torch

LIMIT = 1e-6  # largest relative difference of any weight


def relative_difference(ours: Mapping[str, torch.Tensor],
                        theirs: Mapping[str, torch.Tensor]) -> float:
    """Largest |a - b| of any weight, over its magnitude or, for smaller ones, the typical magnitude
    of the model. (A weight that passes through zero carries the rounding errors of its larger past:
    a quotient by its momentary value has no bound for any two ways of rounding.)"""
    assert ours.keys() == theirs.keys()
    a = torch.cat([ours[name].flatten() for name in theirs]).double()
    b = torch.cat([value.flatten() for value in theirs.values()]).double()
    typical = b.square().mean().sqrt()
    return ((a - b).abs() / b.abs().clamp(min=typical)).max().item()


def assert_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    difference = relative_difference(ours, theirs)
    assert difference <= LIMIT, f"weights differ by {difference:.2e}"
