"""An offloaded module over the in-process fake session, next to the same module in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from fake_session import FakeSession
from models import Block, Net, batch, loss_of
from torch import nn

import luwu
import luwu.torch as lt


def start(net: nn.Module, **options: Any) -> tuple[lt.OffloadedOptimizer, FakeSession]:
    sessions: list[FakeSession] = []

    def connect(job: luwu.JobSpec) -> Any:
        sessions.append(FakeSession(job))
        return sessions[0]

    arguments: dict[str, Any] = dict(
        units=Block, optimizer=luwu.AdamW(lr=1e-2), wire="fp32", connect=connect)
    arguments.update(options)
    return lt.offload(net, **arguments), sessions[0]


def assert_equal_weights(net: nn.Module, reference: nn.Module) -> None:
    ours, theirs = net.state_dict(), reference.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def train(net: Net, steps: int, reference: Net, **options: Any) -> FakeSession:
    """Trains both; losses must be equal at every step."""
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, session = start(net, **options)
    for step in range(steps):
        loss, expected = loss_of(net, batch(step)), loss_of(reference, batch(step))
        loss.backward()
        assert optimizer.resident_bytes() == 0
        assert optimizer.step().applied
        optimizer.zero_grad()
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert loss.item() == expected.item(), step
    assert_equal_weights(net, reference)
    return session
