"""What the torch adapter does when something goes wrong, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fake_training import assert_equal_weights, start
from models import batch, loss_of, make_net
from torch import nn

import luwu
import luwu.torch as lt


def test_an_error_in_forward_gives_the_memory_back() -> None:
    net = make_net()
    optimizer, _ = start(net)
    failing = net.blocks[1].down.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(net, batch(0))
    failing.remove()
    assert sum(unit.nbytes for unit in optimizer._units if not unit.is_root) == 0
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    assert optimizer.resident_bytes() == 0


def test_an_error_in_backward_before_any_push_can_be_repeated() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    logits = net(batch(0)[0])
    logits.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logits.sum().backward()
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    loss_of(reference, batch(0)).backward()
    theirs.step()
    assert_equal_weights(net, reference)


def test_retryable_errors_are_repeated_and_others_are_not() -> None:
    net = make_net()
    optimizer, session = start(net, settings=lt.Settings(worker_timeout_s=5))
    session.fail_next = {
        "fetch": [luwu.DeadlineError("slow")], "push": [luwu.UnavailableError("away")],
        "commit": [luwu.WorkerLostError("rank 1 is lost")] * 2,
    }
    # The fake's operation runs its work again when waited for again, like a repeated call.
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    session.fail_next = {"commit": [luwu.NodeLostError("node1 is lost")]}
    loss_of(net, batch(1)).backward()
    with pytest.raises(luwu.NodeLostError, match="node1"):
        optimizer.step()


def test_a_lost_worker_ends_step_after_the_timeout_and_step_may_be_repeated() -> None:
    net = make_net()
    optimizer, session = start(net, settings=lt.Settings(worker_timeout_s=0.3))
    loss_of(net, batch(0)).backward()
    session.fail_next = {"commit": [luwu.WorkerLostError("rank 1 is lost")] * 50}
    with pytest.raises(luwu.WorkerLostError, match="rank 1"):
        optimizer.step()
    session.fail_next = {}
    assert optimizer.step().applied


def test_state_dict_has_the_masters_and_loading_or_copying_is_refused() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    assert_equal_weights(net, reference)
    assert net.state_dict().keys() >= {"head.weight", "embedding.weight"}
    full = optimizer.full_state_dict()
    assert all(value.dtype is torch.float32 and not value.isnan().any() for value in full.values())
    with pytest.raises(luwu.StateError, match="before offload"):
        net.load_state_dict(reference.state_dict())
    with pytest.raises(luwu.StateError, match="full_state_dict"):
        copy.deepcopy(net)
    with pytest.raises(luwu.StateError, match="before offload"):
        net.half()
    net.eval().train()


def test_restore_gives_an_ordinary_module_back() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    optimizer.restore()
    assert_equal_weights(net, reference)
    loss_of(net, batch(0)).backward()
    assert net.embedding.weight.grad is not None
    copy.deepcopy(net).float().load_state_dict(reference.state_dict())


def test_submodules_with_root_parameters_work_alone() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    with torch.no_grad():
        tokens = batch(0)[0]
        assert torch.equal(net.embedding(tokens), reference.embedding(tokens))
    assert optimizer.resident_bytes() == 0


@pytest.mark.parametrize("change, match", [
    (dict(units=[nn.Linear(2, 2)]), "not a proper submodule"),
    (dict(units=["blocks"]), "is not a module"),
    (dict(missing_grad="ignore"), "'error' or 'zero'"),
    (dict(micro_batches=0), "at least 1"),
    (dict(wire="int8"), "not one of"),
])
def test_wrong_arguments_are_named(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        start(make_net(), **change)


def test_wrong_modules_are_named() -> None:
    with pytest.raises(luwu.UnsupportedError, match="'weight' is torch.float64"):
        start(nn.Linear(2, 2).double(), units=[])
    with pytest.raises(luwu.ArgumentError, match="no parameters"):
        start(nn.ReLU(), units=[], param_groups=[{"params": []}])
    net = make_net()
    with pytest.raises(luwu.ArgumentError, match="'norm.weight' is in no group"):
        start(net, param_groups=[{"params": net.blocks.parameters()},
                                 {"params": [net.embedding.weight]}])
    start(net)
    with pytest.raises(luwu.StateError, match="twice"):
        start(net)
