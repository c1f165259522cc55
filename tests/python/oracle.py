"""Comparing weights with those of plain torch."""

from __future__ import annotations

from typing import Mapping

import torch

LIMIT = 1e-6  # largest relative difference of any weight


def relative_difference(ours: Mapping[str, torch.Tensor],
                        theirs: Mapping[str, torch.Tensor]) -> float:
    """Largest |a - b| / max(|b|, r) over all weights, with r the root mean square of the weight's
    tensor: a weight that passes through zero has no meaningful relative difference of its own."""
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for name, ours_tensor in ours.items():
        a, b = ours_tensor.double(), theirs[name].double()
        scale = torch.clamp(b.abs(), min=b.square().mean().sqrt().item())
        worst = max(worst, ((a - b).abs() / scale).max().item())
    return worst


def assert_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    difference = relative_difference(ours, theirs)
    assert difference <= LIMIT, f"weights differ by {difference:.2e}"
