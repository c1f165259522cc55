"""Lion in torch, written from algorithm 2 of its paper (arXiv 2302.06675)."""

from __future__ import annotations

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """One operation of the paper's formula after the other, each rounded once in fp32."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m, g = state["exp_avg"], p.grad
                c = (m * beta1).add_(g, alpha=1 - beta1)
                p.add_(c.sign_().add_(p, alpha=group["weight_decay"]), alpha=-group["lr"])
                m.mul_(beta2).add_(g, alpha=1 - beta2)
