"""The torch adapter against plain torch, over the in-process fake session: fast, no daemons.

What the daemons compute is tested elsewhere; here it is torch itself, so losses and weights must be
equal bit for bit.
"""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
import torch
from fake_session import FakeSession
from models import Block, Net, batch, loss_of, make_net
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


@pytest.mark.parametrize("checkpoint", [None, True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_training_equals_torch(checkpoint: bool | None, tied: bool) -> None:
    options = dict(tied=tied, checkpoint=checkpoint)
    session = train(make_net(**options), 5, make_net(**options))
    pushed = [layer for verb, layer, _ in session.log if verb == "push"][-4:]
    assert pushed == [3, 2, 1, 0]  # as soon as they are final: last block first, root at the end


@pytest.mark.parametrize("units", [
    lambda net: list(net.blocks), lambda net: Block, lambda net: (Block, nn.Embedding),
    lambda net: lambda name, module: name.startswith("blocks.") and name.count(".") == 1,
    lambda net: (Block, nn.Linear), lambda net: [],
], ids=["list", "class", "classes", "function", "nested", "none"])
def test_units_can_be_given_in_any_form(units: Callable[[Net], Any]) -> None:
    net = make_net()
    train(net, 3, make_net(), units=units(net))


def test_parameters_stay_the_same_objects_and_hold_no_storage() -> None:
    net = make_net()
    before = dict(net.named_parameters())
    optimizer, _ = start(net)
    seen: list[int] = []

    def look(*_: Any) -> None:
        seen.append(sum(not lt.is_placeholder(p) for block in net.blocks for p in block.parameters()))

    for block in net.blocks:
        block.norm.register_forward_pre_hook(look)
    for step in range(2):
        assert all(lt.is_placeholder(p) for p in net.parameters())
        assert all(p.grad is None for p in net.parameters())
        assert optimizer.resident_bytes() == 0
        loss = loss_of(net, batch(step))
        root = {id(net.embedding.weight), id(net.norm.weight), id(net.norm.bias)}
        for name, parameter in net.named_parameters():
            # Between forward and backward: the root, and the unit that backward needs first.
            assert lt.is_placeholder(parameter) == (
                id(parameter) not in root and not (step and name.startswith("blocks.2"))), name
        loss.backward()
        optimizer.step()
    assert all(count == 6 for count in seen)  # one block shows its weights at a time
    assert all(before[name] is parameter for name, parameter in net.named_parameters())
    assert not optimizer.state


def test_a_released_parameter_reads_as_nan_in_its_own_shape() -> None:
    net = make_net()
    start(net)
    weight = net.blocks[0].up.weight
    assert weight.shape == (48, 24) and weight.isnan().all()
    assert "nan" in repr(weight)


def test_evaluation_in_the_middle_of_training_changes_nothing() -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, session = start(net)
    for step in range(3):
        loss = loss_of(net, batch(step))
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():  # between forward and backward
                assert torch.equal(net(batch(9)[0]), reference(batch(9)[0]))
        loss.backward()
        with torch.no_grad():  # in the same step, after the gradients have left
            assert torch.equal(net(batch(9)[0]), reference(batch(9)[0]))
        assert optimizer.resident_bytes() == 0
        optimizer.step()
        theirs.zero_grad()
        loss_of(reference, batch(step)).backward()
        theirs.step()
        with torch.no_grad():  # a generation loop
            for position in range(1, 5):
                tokens = batch(9)[0][:, :position]
                assert torch.equal(net(tokens), reference(tokens))
        assert optimizer.resident_bytes() == 0
    assert_equal_weights(net, reference)


def test_wrong_prefetch_guesses_are_harmless() -> None:
    net, reference = make_net(blocks=4), make_net(blocks=4)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net, settings=lt.Settings(prefetch=2))
    orders = [[0, 1, 2, 3], [3, 1, 2, 0], [0, 0, 2], [2], [1, 3], [0, 1, 2, 3]]
    for step, order in enumerate(orders):
        net.order = reference.order = order
        loss, expected = loss_of(net, batch(step)), loss_of(reference, batch(step))
        loss.backward()
        assert optimizer.resident_bytes() == 0
        optimizer.step()
        theirs.zero_grad(set_to_none=True)
        expected.backward()
        theirs.step()
        assert loss.item() == expected.item()
    assert optimizer.prefetch_misses > 0 and optimizer.prefetch_hits > 0
    assert_equal_weights(net, reference)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_prefetch_depth_does_not_change_the_result(prefetch: int) -> None:
    train(make_net(), 3, make_net(), settings=lt.Settings(prefetch=prefetch))


@pytest.mark.parametrize("how", ["context", "option"])
def test_accumulated_micro_batches_equal_torch(how: str) -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, session = start(net, micro_batches=3 if how == "option" else 1)
    for step in range(3):
        theirs.zero_grad()
        for micro in range(3):
            data = batch(step, rank=micro)
            (loss_of(reference, data) / 3).backward()
            if how == "context" and micro < 2:
                with optimizer.accumulate():
                    (loss_of(net, data) / 3).backward()
            else:
                (loss_of(net, data) / 3).backward()
        optimizer.step()
        theirs.step()
    assert_equal_weights(net, reference)
    assert [close for verb, layer, close in session.log if verb == "push" and layer == 2] == [
        False, False, True] * 3


def test_a_step_with_fewer_micro_batches_is_closed_by_step() -> None:
    net = make_net()
    optimizer, session = start(net, micro_batches=3)
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    assert [verb for verb, layer, _ in session.log if layer == 1 and verb != "fetch"] == [
        "push", "close"]


def test_a_second_backward_without_accumulate_names_the_fix() -> None:
    net = make_net()
    optimizer, _ = start(net)
    loss_of(net, batch(0)).backward()
    with pytest.raises(luwu.StateError, match=r"another gradient after unit .*accumulate\(\)"):
        loss_of(net, batch(1)).backward()
    with pytest.raises(luwu.StateError, match="restart the worker"):
        optimizer.step()


def test_a_unit_without_gradient_is_absent_and_not_updated() -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, session = start(net)
    for step in range(6):
        net.skip = reference.skip = {step % 3}
        loss_of(net, batch(step)).backward()
        optimizer.step()
        theirs.zero_grad(set_to_none=True)
        loss_of(reference, batch(step)).backward()
        theirs.step()
    assert_equal_weights(net, reference)
    assert [layer for verb, layer, _ in session.log if verb == "close"] == [1, 2, 3] * 2


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(24, 24)
        self.spare = nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.used(x)


def test_a_parameter_without_gradient_in_a_used_unit_is_named() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(HalfUsed(), HalfUsed())
    start(net, units=HalfUsed)
    with pytest.raises(luwu.StateError, match=r"'0\.spare\.weight' got no gradient .*'zero'"):
        net(torch.ones(2, 24)).sum().backward()


def test_a_missing_gradient_can_count_as_zero() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(HalfUsed(), HalfUsed())
    reference = copy.deepcopy(net)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net, units=HalfUsed, missing_grad="zero")
    for _ in range(3):
        net(torch.ones(2, 24)).sum().backward()
        optimizer.step()
        theirs.zero_grad(set_to_none=False)
        reference(torch.ones(2, 24)).sum().backward()
        for parameter in reference.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        theirs.step()
    assert_equal_weights(net, reference)


def test_frozen_parameters_and_units() -> None:
    def freeze(net: Net) -> Net:
        net.blocks[1].requires_grad_(False)  # a whole unit, between trainable ones
        net.blocks[2].norm.requires_grad_(False)  # part of a unit
        net.norm.weight.requires_grad_(False)
        return net

    session = train(freeze(make_net()), 4, freeze(make_net()))
    assert not any(layer == 2 for verb, layer, _ in session.log if verb != "fetch")


def test_parameter_groups_and_a_schedule_that_changes_every_step() -> None:
    net, reference = make_net(), make_net()
    groups = lt.decay_groups(net, weight_decay=0.3)
    optimizer, session = start(net, param_groups=groups)
    theirs = torch.optim.AdamW(lt.decay_groups(reference, weight_decay=0.3), lr=1e-2)

    def rule(step: int) -> float:
        return 1.0 / (1 + step)

    ours_schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rule)
    their_schedule = torch.optim.lr_scheduler.LambdaLR(theirs, rule)
    for step in range(5):
        loss_of(net, batch(step)).backward()
        optimizer.step()
        ours_schedule.step()
        theirs.zero_grad()
        loss_of(reference, batch(step)).backward()
        theirs.step()
        their_schedule.step()
    assert_equal_weights(net, reference)
    assert ours_schedule.get_last_lr() == their_schedule.get_last_lr()
    assert session.job.groups == 2


def test_changing_a_hyper_parameter_inside_a_step_is_an_error() -> None:
    net = make_net()
    optimizer, _ = start(net)
    loss_of(net, batch(0)).backward()
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(luwu.StateError, match="Change hyper-parameters before"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-2
    assert optimizer.step().applied


def test_sgd_with_momentum_equals_torch() -> None:
    net, reference = make_net(), make_net()
    values = dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    optimizer, session = start(net, optimizer=luwu.SGD(**values))
    theirs = torch.optim.SGD(reference.parameters(), **values)
    for step in range(4):
        loss_of(net, batch(step)).backward()
        optimizer.step()
        theirs.zero_grad()
        loss_of(reference, batch(step)).backward()
        theirs.step()
    assert_equal_weights(net, reference)
    assert session.job.sgd_momentum


def test_mixed_dtypes_in_one_unit() -> None:
    torch.manual_seed(0)
    net = make_net()
    net.blocks[1].to(torch.bfloat16)
    net.blocks[1].norm.float()
    original = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer, session = start(net)
    with optimizer.materialized():
        for name, parameter in net.named_parameters():
            assert torch.equal(parameter, original[name]), name
    assert optimizer.resident_bytes() == 0
    layer = session.job.layers[2]
    assert [t.offset % 64 for t in layer.tensors] == [0] * 6
    assert [t.name.split(".")[-2] for t in layer.tensors] == ["norm"] * 2 + ["up"] * 2 + ["down"] * 2


def test_a_unit_that_runs_twice_in_one_pass() -> None:
    for checkpoint in (None, True, False):
        net, reference = make_net(checkpoint=checkpoint), make_net(checkpoint=checkpoint)
        net.order = reference.order = [0, 1, 0, 2, 0]
        train(net, 3, reference)


def test_two_forwards_before_their_backwards() -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net)
    for step in range(3):
        for module, step_function in ((net, optimizer.step), (reference, theirs.step)):
            if module is reference:
                theirs.zero_grad()
            first, second = loss_of(module, batch(step)), loss_of(module, batch(step, rank=1))
            if module is net:
                with optimizer.accumulate():
                    first.backward()
            else:
                first.backward()
            second.backward()
            step_function()
    assert_equal_weights(net, reference)


def test_inner_backward_values_are_right_for_every_saved_view() -> None:
    """Weights that autograd saved as transposed, sliced and reshaped views."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))
            self.scale = nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ self.weight.t() + x @ self.weight[:, :4].reshape(8, 4).repeat(1, 2)
            return y * self.scale.view(1, 8) + x * self.scale.exp()

    torch.manual_seed(0)
    net = nn.Sequential(Views(), Views(), Views())
    reference = copy.deepcopy(net)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net, units=Views)
    for _ in range(3):
        net(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        theirs.zero_grad()
        reference(torch.ones(2, 8)).square().mean().backward()
        theirs.step()
    assert_equal_weights(net, reference)


def test_keyword_arguments_and_structured_outputs() -> None:
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, *, x: torch.Tensor, extra: Any = None) -> dict[str, Any]:
            return {"out": (self.linear(x), None), "extra": extra}

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Unit(), Unit()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(x=self.a(x=x)["out"][0])["out"][0]

    torch.manual_seed(0)
    net = Whole()
    reference = copy.deepcopy(net)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net, units=Unit)
    for _ in range(3):
        net(torch.ones(2, 4)).square().sum().backward()
        assert optimizer.resident_bytes() == 0
        optimizer.step()
        theirs.zero_grad()
        reference(torch.ones(2, 4)).square().sum().backward()
        theirs.step()
    assert_equal_weights(net, reference)


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


def test_restore_gives_an_ordinary_module_back() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    optimizer.restore()
    assert_equal_weights(net, reference)
    loss_of(net, batch(0)).backward()
    assert net.embedding.weight.grad is not None
    copy.deepcopy(net).load_state_dict(reference.state_dict())


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
