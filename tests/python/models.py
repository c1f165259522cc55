"""Small modules that the tests train, and batches for them."""

from __future__ import annotations

import torch
import torch.utils.checkpoint
from torch import nn

VOCABULARY = 50


class Block(nn.Module):
    """Residual MLP with a norm, as in a transformer."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Embedding, blocks, head; the head may be tied to the embedding. ``skip``: blocks to leave
    out of the next forward. ``checkpoint``: None, or the value of ``use_reentrant``."""

    def __init__(self, blocks: int = 3, width: int = 24, tied: bool = True,
                 checkpoint: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpoint = checkpoint
        self.skip: set[int] = set()
        self.order: list[int] | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for index in self.order or range(len(self.blocks)):
            if index in self.skip:
                continue
            block = self.blocks[index]
            if self.checkpoint is None or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpoint)
        return self.head(self.norm(x))


def make_net(seed: int = 0, **options: object) -> Net:
    """A net whose weights depend on ``seed`` only."""
    torch.manual_seed(seed)
    return Net(**options)  # type: ignore[arg-type]


def batch(step: int, rank: int = 0, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets that depend on step and rank only."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, VOCABULARY, (size, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(net: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy."""
    tokens, targets = data
    return nn.functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
