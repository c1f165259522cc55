"""AdamW (arXiv 1711.05101) in torch, one rounding for each operation, in the daemons' order.

``torch.optim.AdamW`` does the same in torch 1.13 with plain kernels. torch 2 computes exp_avg by
``lerp_``, and AVX kernels fuse multiplications with additions. That moves last bits, and training
feeds them back: weights that differ give gradients that differ. Operations without ``alpha`` and
``value`` round once in every version and with all kernels, so this class allows a test of something
else than the formula (prefetching, say) to ask for equal bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def _fp32(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


class PlainAdamW(torch.optim.Optimizer):
    """The arguments of torch.optim.AdamW, with its defaults."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, self.state[p], group)

    @staticmethod
    def _update(p: torch.Tensor, g: torch.Tensor, state: dict[str, Any],
                group: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
        state["step"] += 1
        (beta1, beta2), t = group["betas"], state["step"]
        m, v = state["m"], state["v"]
        p.mul_(_fp32(1 - group["lr"] * group["weight_decay"]))
        m.mul_(_fp32(beta1))
        m.add_(g * _fp32(1 - beta1))
        v.mul_(_fp32(beta2))
        v.add_(g * _fp32(1 - beta2) * g)
        root = v.sqrt() / _fp32(math.sqrt(1 - beta2**t)) + _fp32(group["eps"])
        p.add_(m * _fp32(-(group["lr"] / (1 - beta1**t))) / root)
