"""The torch adapter against plain torch, over the in-process fake session: fast, no daemons.

What the daemons compute is tested elsewhere; here it is torch itself, so losses and weights must be
equal bit for bit.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Callable

import pytest
import torch
import torch.utils.checkpoint
from fake_training import assert_equal_weights, start, train
from models import Block, Net, batch, loss_of, make_net
from torch import nn

import luwu
import luwu.torch as lt


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
        parameters = [p for block in net.blocks for p in block.parameters()]
        seen.append(sum(not lt.is_placeholder(p) for p in parameters))

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


def test_a_released_parameter_has_its_own_shape_and_cannot_be_read() -> None:
    net = make_net()
    start(net)
    weight = net.blocks[0].up.weight
    assert weight.shape == (48, 24)
    with pytest.raises(luwu.StateError, match="'blocks.0.up.weight', which are not in memory"):
        weight.isnan()


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
    with pytest.warns(UserWarning, match=r"after 1 of micro_batches=3 .*accumulate\(\)") as told:
        assert optimizer.step().applied
    assert [each.filename for each in told] == [__file__]
    assert [verb for verb, layer, _ in session.log if layer == 1 and verb != "fetch"] == [
        "push", "close"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(net, batch(1)).backward()
        assert optimizer.step().applied, "told once"


def test_steps_that_are_meant_to_be_short_or_are_empty_do_not_warn() -> None:
    net = make_net()
    optimizer, _ = start(net, micro_batches=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.accumulate():
            loss_of(net, batch(0)).backward()
        assert optimizer.step().applied
        loss_of(net, batch(1)).backward()
        with optimizer.accumulate():
            loss_of(net, batch(2)).backward()
        assert optimizer.step().applied
        optimizer.step()
        for micro in range(3):
            loss_of(net, batch(3, rank=micro)).backward()
        assert optimizer.step().applied
    loss_of(net, batch(4)).backward()
    with pytest.warns(UserWarning, match="after 1 of micro_batches=3"):
        optimizer.step()


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
    assert [t.name.split(".")[-2] for t in layer.tensors] == [
        "norm", "norm", "up", "up", "down", "down"]


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


def test_a_parameter_passed_as_input_collects_no_hooks() -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.ones(3, 24))
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self) -> torch.Tensor:
            return self.blocks[1](self.blocks[0](self.prompt))

    torch.manual_seed(0)
    net = Prompted()
    reference = copy.deepcopy(net)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net)
    for _ in range(4):
        net().square().sum().backward()
        assert optimizer.resident_bytes() == 0
        optimizer.step()
        theirs.zero_grad()
        reference().square().sum().backward()
        theirs.step()
    assert_equal_weights(net, reference)
    assert not net.prompt._backward_hooks


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_the_whole_module(reentrant: bool) -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    optimizer, _ = start(net)
    scale = torch.ones((), requires_grad=True)  # reentrant checkpointing needs such an input
    for step in range(3):
        for module, advance in ((net, optimizer.step), (reference, theirs.step)):
            tokens, targets = batch(step)
            logits = torch.utils.checkpoint.checkpoint(
                lambda s, t: module(t) * s, scale, tokens, use_reentrant=reentrant)
            nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
            if module is net:
                assert optimizer.resident_bytes() == 0
            advance()
        theirs.zero_grad()
    assert_equal_weights(net, reference)


def test_units_called_without_the_root_module() -> None:
    net, reference = make_net(), make_net()
    theirs = torch.optim.AdamW(reference.blocks.parameters(), lr=1e-2)
    optimizer, _ = start(net)
    x = torch.ones(2, 24)
    for _ in range(3):
        for module, advance in ((net, optimizer.step), (reference, theirs.step)):
            module.blocks[1](module.blocks[0](x)).square().mean().backward()
            advance()
        theirs.zero_grad()
        assert optimizer.resident_bytes() == 0
        with torch.no_grad():
            assert torch.equal(net.blocks[0](x), reference.blocks[0](x))
    assert_equal_weights(net.blocks, reference.blocks)
