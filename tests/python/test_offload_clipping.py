"""Clipping and loss scaling through ``offload``: against the fake session what the adapter does,
against real daemons that it adds up to torch's result."""

from __future__ import annotations

import math
from typing import Any, Iterable

import pytest
import torch
from cluster import Cluster
from fake_training import assert_equal_weights, start
from models import Block, Net, batch, loss_of, make_net
from torch.nn.utils import clip_grad_norm_

import luwu
import luwu.torch as lt

LIMIT = 1e-6
# torch 2 computes moments by lerp, 1.13 by the formula that the daemons have.
SAME_ORDER = torch.__version__.startswith("1.")
MODES = ["deferred", "speculative"]


def offload(cluster: Cluster, job: str, net: Net, **options: Any) -> lt.OffloadedOptimizer:
    arguments: dict[str, Any] = dict(
        units=Block, endpoints=cluster.endpoints, job=job, optimizer=luwu.AdamW(lr=1e-2),
        wire="fp32", settings=lt.Settings(overflow_bytes=1 << 20))
    return lt.offload(net, **{**arguments, **options})


def clip(parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
    """What ``clip_grad_norm_`` does, with the norm in float64, as the daemons have it. torch's own
    is float32, and training on makes more of the difference with every step."""
    present = list(parameters)
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in present))
    assert norm == pytest.approx(float(clip_grad_norm_(present, math.inf)), rel=LIMIT)
    factor = float(torch.tensor(min(1.0, limit / (norm + 1e-6)), dtype=torch.float32))
    for parameter in present:
        parameter.grad.mul_(factor)
    return norm


def assert_same(ours: dict[str, torch.Tensor], reference: Net) -> None:
    """Bit for bit; nearly, under a torch whose optimizers round in another order."""
    for name, theirs in reference.named_parameters():
        a, b = ours[name].double(), theirs.detach().double()
        scale = b.abs().clamp(min=float(b.square().mean().sqrt()))
        assert float(((a - b).abs() / scale).max()) <= (0 if SAME_ORDER else 1e-5), name


# ---- with real daemons --------------------------------------------------------------------------

@pytest.mark.parametrize("mode", ["auto", "speculative"])
@pytest.mark.parametrize("wanted", [
    (luwu.AdamW(lr=1e-2), torch.optim.AdamW), (luwu.Adam(lr=1e-2, amsgrad=True), torch.optim.Adam),
    (luwu.Adagrad(lr=1e-2), torch.optim.Adagrad),
    (luwu.SGD(lr=5e-2, momentum=0.9), torch.optim.SGD)], ids=lambda wanted: wanted[1].__name__)
def test_training_with_a_global_limit_equals_torch(
        cluster: Cluster, job_name: str, wanted: Any, mode: str) -> None:
    """The limit follows a schedule; after step() the next forward has the new weights."""
    spec, kind = wanted
    net, reference = make_net(), make_net()
    optimizer = offload(cluster, job_name, net, optimizer=spec, clip_grad_norm=1.0,
                        update_mode=mode)
    fixed = {"amsgrad": True} if getattr(spec, "amsgrad", False) else {}
    theirs = kind(reference.parameters(), **spec.step_values(), **fixed)
    clipped = 0
    for step in range(60):
        limit = (0.2, 2.0, 100.0)[step % 3]
        optimizer.set_max_norm(limit)
        loss, expected = loss_of(net, batch(step)), loss_of(reference, batch(step))
        assert loss.item() == pytest.approx(expected.item(), rel=0 if SAME_ORDER else 1e-5), step
        loss.backward()
        outcome = optimizer.step()
        theirs.zero_grad(set_to_none=True)
        expected.backward()
        norm = clip(reference.parameters(), limit)
        theirs.step()
        assert outcome.grad_norm == optimizer.grad_norm == pytest.approx(
            norm, rel=1e-12 if SAME_ORDER else 1e-5)
        assert outcome is optimizer.last_commit
        clipped += outcome.clip_factor < 1
    assert 0 < clipped < 60
    assert_same(optimizer.full_state_dict(), reference)
    optimizer.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scope", ["group", "layer"])
def test_limits_for_each_group_and_for_each_unit_equal_torch(
        cluster: Cluster, job_name: str, scope: str, mode: str) -> None:
    net, reference = make_net(), make_net()
    groups, their_groups = (lt.decay_groups(module, 0.1) for module in (net, reference))
    limits = [0.3, 0.1] if scope == "group" else [0.2, 0.2]
    for group, limit in zip(groups, limits):
        group["max_norm"] = limit
    optimizer = offload(cluster, job_name, net, param_groups=groups, clip_scope=scope,
                        update_mode=mode)
    theirs = torch.optim.AdamW(their_groups, lr=1e-2)
    units: list[list[torch.nn.Parameter]] = [
        list(block.parameters()) for block in reference.blocks]
    inside = {id(p) for unit in units for p in unit}
    units.append([p for p in reference.parameters() if id(p) not in inside])
    for step in range(40):
        loss_of(net, batch(step)).backward()
        optimizer.step()
        theirs.zero_grad(set_to_none=True)
        loss_of(reference, batch(step)).backward()
        if scope == "group":
            for group, limit in zip(their_groups, limits):
                clip(group["params"], limit)
        else:
            for unit in units:
                clip(unit, 0.2)
        theirs.step()
    assert_same(optimizer.full_state_dict(), reference)
    optimizer.close()


@pytest.mark.parametrize("mode", MODES)
def test_loss_scaling_equals_plain_training_without_the_skipped_steps(
        cluster: Cluster, job_name: str, mode: str) -> None:
    net, reference = make_net(), make_net()
    optimizer = offload(cluster, job_name, net, update_mode=mode, loss_scaling=luwu.LossScaling(
        init_scale=2.0**12, growth_interval=4))
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    scale, in_a_row = 2.0**12, 0
    for step in range(40):
        assert optimizer.loss_scale == scale
        bad = step % 9 == 2
        loss = loss_of(net, batch(step))
        optimizer.scale(loss * math.inf if bad else loss).backward()
        outcome = optimizer.step()
        assert outcome.skipped == bad
        if bad:
            scale, in_a_row = scale / 2, 0
            assert math.isnan(outcome.grad_norm) and outcome.culprit
        else:
            theirs.zero_grad(set_to_none=True)
            loss_of(reference, batch(step)).backward()
            theirs.step()
            scale, in_a_row = (scale * 2, 0) if in_a_row == 3 else (scale, in_a_row + 1)
        assert outcome.loss_scale == scale
    assert_same(optimizer.full_state_dict(), reference)
    optimizer.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_forgotten_scale_reaches_no_daemon_and_the_pass_can_be_repeated(
        cluster: Cluster, job_name: str, mode: str) -> None:
    net, reference = make_net(), make_net()
    optimizer = offload(cluster, job_name, net, update_mode=mode,
                        loss_scaling=luwu.LossScaling(init_scale=2.0))
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(3):
        pushed = optimizer.session.info().pushed_bytes
        with pytest.raises(luwu.StateError, match="call optimizer.scale"):
            loss_of(net, batch(step)).backward()
        assert optimizer.session.info().pushed_bytes == pushed
        optimizer.scale(loss_of(net, batch(step))).backward()
        assert optimizer.step().applied
        theirs.zero_grad(set_to_none=True)
        loss_of(reference, batch(step)).backward()
        theirs.step()
    assert_same(optimizer.full_state_dict(), reference)
    optimizer.close()


@pytest.mark.parametrize("precision", ["bfloat16", "blockwise8"])
def test_coarse_state_trains_the_model_nearly_as_well(
        cluster: Cluster, job_name: str, precision: str) -> None:
    def last_loss(name: str, optimizer: luwu.AdamW) -> float:
        net = make_net()
        training = offload(cluster, name, net, optimizer=optimizer, wire="bf16")
        losses = []
        for step in range(80):
            loss = loss_of(net, batch(step % 4))
            loss.backward()
            training.step()
            losses.append(loss.item())
        training.close()
        assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
        return sum(losses[-4:]) / 4

    exact = last_loss(f"{job_name}-exact", luwu.AdamW(lr=1e-2))
    coarse = last_loss(f"{job_name}-coarse", luwu.AdamW(
        lr=1e-2, state_precision=precision, master_format="split"))
    assert coarse < 1.15 * exact + 0.05


# ---- with the fake session ----------------------------------------------------------------------

def test_the_limit_travels_with_every_step() -> None:
    net, reference = make_net(), make_net()
    optimizer, session = start(net, clip_grad_norm=0.5)
    assert session.job.clip_scope == "global"
    assert session.job.resolved_update_mode == "deferred"
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(10):
        loss_of(net, batch(step)).backward()
        assert session.max_norm == [0.5 if step < 5 else 0.1]
        optimizer.step()
        if step == 4:
            optimizer.param_groups[0]["max_norm"] = 0.1
        loss_of(reference, batch(step)).backward()
        # In the order of the job's layers, in which the fake adds up squares.
        order = sorted(reference.named_parameters(), key=lambda item: item[0].startswith("blocks"))
        clip_grad_norm_([p for _, p in order], 0.5 if step < 5 else 0.1)
        theirs.step()
        theirs.zero_grad(set_to_none=True)
    ours = net.state_dict()
    for name, value in reference.state_dict().items():
        assert torch.allclose(ours[name], value, rtol=1e-5, atol=1e-7), name


def test_a_limit_that_changes_within_a_step_is_an_error() -> None:
    net = make_net()
    optimizer, _ = start(net, clip_grad_norm=0.5)
    loss_of(net, batch(0)).backward()
    optimizer.set_max_norm(1.0)
    with pytest.raises(luwu.StateError, match="max_norm 0.5.*max_norm 1.0"):
        optimizer.step()


def test_scale_multiplies_tensors_and_lists_and_is_nothing_without_loss_scaling() -> None:
    net = make_net()
    optimizer, _ = start(net)
    loss = torch.ones(())
    assert optimizer.scale(loss) is loss and optimizer.loss_scale == 1
    scaled, session = start(make_net(), loss_scaling=True)
    assert session.job.loss_scaling == luwu.LossScaling()
    assert scaled.scale(loss).item() == scaled.loss_scale == 65536
    assert [each.item() for each in scaled.scale([loss, 2 * loss])] == [65536, 131072]
    assert session.begun is not None, "the scale holds for a step that has begun"


def test_a_scaled_loss_gives_the_weights_of_a_plain_one() -> None:
    net, reference = make_net(), make_net()
    optimizer, session = start(net, loss_scaling=luwu.LossScaling(init_scale=256.0))
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    assert optimizer.last_commit is None and math.isnan(optimizer.grad_norm)
    for step in range(6):
        bad = step == 2
        optimizer.scale(loss_of(net, batch(step)) * (math.nan if bad else 1)).backward()
        assert optimizer.step().applied != bad
        if not bad:
            theirs.zero_grad(set_to_none=True)
            loss_of(reference, batch(step)).backward()
            theirs.step()
    assert session.loss_scale == optimizer.loss_scale == 128
    assert_equal_weights(net, reference)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_backward_without_scale_is_refused_in_every_step(micro_batches: int) -> None:
    net, reference = make_net(), make_net()
    optimizer, session = start(net, loss_scaling=True, micro_batches=micro_batches)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(2):
        with pytest.raises(luwu.StateError, match=r"call optimizer.scale\(loss\).backward\(\); "
                                                  "gradients are divided by the loss scale"):
            loss_of(net, batch(step)).backward()
        assert session.step == step and not session.sums
        assert all(parameter.grad is None for parameter in net.parameters())
        theirs.zero_grad(set_to_none=True)
        for micro in range(micro_batches):
            optimizer.scale(loss_of(net, batch(step, rank=micro))).backward()
            loss_of(reference, batch(step, rank=micro)).backward()
        assert optimizer.step().applied
        theirs.step()
    assert_equal_weights(net, reference)


def test_a_step_that_has_no_gradients_needs_no_scale_and_a_repeated_one_keeps_it() -> None:
    net = make_net()
    optimizer, session = start(net, loss_scaling=True)
    assert optimizer.step().applied
    optimizer.scale(loss_of(net, batch(0))).backward()
    session.fail_next = {"commit": [luwu.StateError("not now")]}
    with pytest.raises(luwu.StateError, match="not now"):
        optimizer.step()
    assert optimizer.step().applied and optimizer.current_step == 2


@pytest.mark.parametrize("options, mode, keeps", [
    (dict(), "immediate", True), (dict(clip_scope="layer"), "deferred", False),
    (dict(loss_scaling=True), "deferred", False),
    (dict(loss_scaling=True, update_mode="speculative"), "speculative", True),
    (dict(update_mode="deferred"), "deferred", False),
    (dict(update_mode="deferred", settings=lt.Settings(keep_undo_state=True)), "deferred", True),
])
def test_the_mode_and_the_undo_state_are_what_is_needed(
        options: dict[str, Any], mode: str, keeps: bool) -> None:
    from luwu.cstructs import c_job

    _, session = start(make_net(), **options)
    assert session.job.held is luwu.DType.FLOAT32
    assert session.job.resolved_update_mode == mode
    assert c_job(session.job).keep_undo_state == keeps


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_settings_choose_the_dtype_of_held_sums(name: str) -> None:
    _, session = start(make_net(), clip_grad_norm=1.0, settings=lt.Settings(held=name))
    assert session.job.held is luwu.DType.BFLOAT16


@pytest.mark.parametrize("short, full", [
    ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_dtypes_have_short_and_full_names(short: str, full: str) -> None:
    jobs = [start(make_net(), wire=a, gradient_wire=b)[1].job
            for a, b in ((short, full), (full, short))]
    assert jobs[0] == jobs[1] and jobs[0].served.name == jobs[0].gradients.name == full.upper()
    layers = jobs[0].layers
    spec = luwu.JobSpec("j", 1, layers, served=short, gradients=full)  # type: ignore[arg-type]
    assert spec.served is spec.gradients is luwu.DType[full.upper()]
    with pytest.raises(ValueError, match="dtype 'int8' is not one of"):
        luwu.JobSpec("j", 1, layers, held="int8")  # type: ignore[arg-type]
    if short != "fp16":
        assert luwu.SGD(state_precision=short) == luwu.SGD(state_precision=full)
        assert luwu.SGD(state_precision=short).state_precision == full


def test_what_does_not_go_together_is_an_error() -> None:
    with pytest.raises(luwu.ArgumentError, match="clip_scope 'none'"):
        start(make_net(), clip_grad_norm=1.0, clip_scope="none")
    with pytest.raises(luwu.ArgumentError, match="clip_scope 'all' is not one of"):
        start(make_net(), clip_scope="all")
    with pytest.raises(luwu.ArgumentError, match="update_mode 'late' is not one of"):
        start(make_net(), update_mode="late")
    with pytest.raises(ValueError, match="state_precision 'int4' is not one of"):
        luwu.AdamW(state_precision="int4")
    plain, _ = start(make_net())
    with pytest.raises(luwu.StateError, match="does not clip"):
        plain.set_max_norm(1.0)
    plain.param_groups[0]["max_norm"] = 1.0
    with pytest.raises(luwu.StateError, match="does not clip"):
        plain.step()
    net = make_net()
    grouped, _ = start(net, param_groups=lt.decay_groups(net, 0.1), clip_grad_norm=1.0)
    grouped.param_groups[1]["max_norm"] = 2.0
    with pytest.raises(luwu.StateError, match="must be equal"):
        grouped.step()
