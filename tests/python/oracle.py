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
    """Largest |a - b| / |b| over all weights."""
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for name, ours_tensor in ours.items():
        a, b = ours_tensor.double(), theirs[name].double()
        difference = torch.where(a == b, torch.zeros_like(a), (a - b).abs() / b.abs())
        worst = max(worst, difference.max().item())
    return worst


def assert_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    difference = relative_difference(ours, theirs)
    assert difference <= LIMIT, f"weights differ by {difference:.2e}"
