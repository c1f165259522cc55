"""One worker with real daemons against ``torch.optim`` in one process, fp32 on the wire."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import pytest
import torch
from cluster import Cluster
from models import Block, Net, batch, loss_of, make_net
from oracle import LIMIT, assert_close, relative_difference
from plain_adamw import PlainAdamW

import luwu
import luwu.torch as lt

Prepare = Callable[[Net], Any]


def masters_of(net: Net) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def settings(**changes: Any) -> lt.Settings:
    """A small overflow pool, so that many jobs fit on the test's daemons."""
    return lt.Settings(**{"overflow_bytes": 1 << 20, **changes})


def offload(cluster: Cluster, job: str, net: Net, **options: Any) -> lt.OffloadedOptimizer:
    arguments: dict[str, Any] = dict(
        units=Block, endpoints=cluster.endpoints, job=job, optimizer=luwu.AdamW(lr=1e-2),
        wire="fp32", settings=settings())
    arguments.update(options)
    return lt.offload(net, **arguments)


def run(cluster: Cluster, job: str, steps: int, their_optimizer: Callable[[Net], Any],
        prepare: Prepare = lambda net: None, each_step: Callable[[Net, int], None] | None = None,
        schedule: Callable[[int], float] | None = None, groups: Callable[[Net], Any] | None = None,
        equal_bits: bool = False, **options: Any) -> None:
    """Trains both and compares all masters at the end."""
    net, reference = make_net(), make_net()
    prepare(net)
    prepare(reference)
    theirs = their_optimizer(reference)
    if groups is not None:
        options["param_groups"] = groups(net)
    optimizer = offload(cluster, job, net, **options)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, schedule)
                 for each in (optimizer, theirs) if schedule is not None]
    for step in range(steps):
        if each_step is not None:
            each_step(net, step)
            each_step(reference, step)
        loss_of(net, batch(step)).backward()
        assert optimizer.resident_bytes() == 0
        assert optimizer.step().applied
        theirs.zero_grad(set_to_none=True)
        loss_of(reference, batch(step)).backward()
        theirs.step()
        for each in schedules:
            each.step()
    ours, expected = optimizer.full_state_dict(), masters_of(reference)
    assert_close(ours, expected)
    if equal_bits:
        assert all(torch.equal(ours[name], value) for name, value in expected.items())
    optimizer.close()


def adamw(net: Net) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2)


def test_two_hundred_steps_of_adamw(cluster: Cluster, job_name: str) -> None:
    run(cluster, job_name, 200, adamw)


@pytest.mark.parametrize("values", [
    dict(lr=0.05), dict(lr=0.05, momentum=0.9), dict(lr=0.05, momentum=0.9, dampening=0.3),
    dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)])
def test_sgd(cluster: Cluster, job_name: str, values: dict[str, Any]) -> None:
    run(cluster, job_name, 50, lambda net: torch.optim.SGD(net.parameters(), **values),
        optimizer=luwu.SGD(**values))


def test_parameter_groups_with_a_schedule_that_changes_every_step(
        cluster: Cluster, job_name: str) -> None:
    def groups(net: Net) -> Any:
        decay, rest = lt.decay_groups(net, weight_decay=0.3)
        return [{**decay, "betas": (0.8, 0.95)}, {**rest, "lr": 3e-3, "eps": 1e-6}]

    run(cluster, job_name, 50, lambda net: torch.optim.AdamW(groups(net), lr=1e-2), groups=groups,
        schedule=lambda step: 1 / (1 + 0.1 * step))


@pytest.mark.parametrize("checkpoint", [True, False])
def test_activation_checkpointing(cluster: Cluster, job_name: str, checkpoint: bool) -> None:
    run(cluster, job_name, 20, adamw, prepare=lambda net: setattr(net, "checkpoint", checkpoint))


def test_frozen_units_and_parameters(cluster: Cluster, job_name: str) -> None:
    def freeze(net: Net) -> None:
        net.blocks[1].requires_grad_(False)
        net.blocks[2].norm.requires_grad_(False)

    run(cluster, job_name, 20, adamw, prepare=freeze)


def test_units_without_gradient_in_some_steps(cluster: Cluster, job_name: str) -> None:
    def skip(net: Net, step: int) -> None:
        net.skip = {step % 3} if step % 4 else set()

    run(cluster, job_name, 40, adamw, each_step=skip)


def test_plain_adamw_is_torchs_to_the_last_roundings() -> None:
    """On gradients that do not depend on the weights, so that no difference is fed back."""
    net, plain = make_net(), make_net()
    theirs, ours = adamw(net), PlainAdamW(plain.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(7)
    for _ in range(200):
        for p, q in zip(net.parameters(), plain.parameters()):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        theirs.step()
        ours.step()
    assert relative_difference(masters_of(plain), masters_of(net)) <= LIMIT


def test_wrong_prefetch_guesses(cluster: Cluster, job_name: str) -> None:
    """Orders that change with every step make more of a last bit than ``LIMIT`` (2.6e-6 with torch
    2, whose AdamW rounds in another order): so the same roundings on both sides, and equal bits."""
    orders = [[0, 1, 2], [2, 1, 0], [1], [0, 2, 0]]

    def shuffle(net: Net, step: int) -> None:
        net.order = orders[step % 4]

    run(cluster, job_name, 40, lambda net: PlainAdamW(net.parameters(), lr=1e-2),
        each_step=shuffle, settings=settings(prefetch=2), equal_bits=True)


def accumulate_in_torch(steps: int) -> Net:
    """Four micro-batches in each step."""
    net = make_net()
    theirs = adamw(net)
    for step in range(steps):
        theirs.zero_grad()
        for micro in range(4):
            (loss_of(net, batch(step, rank=micro)) / 4).backward()
        theirs.step()
    return net


def accumulate(cluster: Cluster, job: str, steps: int) -> dict[str, torch.Tensor]:
    net = make_net()
    optimizer = offload(cluster, job, net, micro_batches=4)
    for step in range(steps):
        for micro in range(4):
            (loss_of(net, batch(step, rank=micro)) / 4).backward()
        assert optimizer.step().applied
    masters = optimizer.full_state_dict()
    optimizer.close()
    return masters


def test_accumulated_micro_batches_equal_torch(cluster: Cluster, job_name: str) -> None:
    assert_close(accumulate(cluster, job_name, 20), masters_of(accumulate_in_torch(20)))


def test_accumulated_micro_batches_are_as_close_to_one_big_batch_as_torchs_own(
        cluster: Cluster, job_name: str) -> None:
    """The forward and backward of a bigger batch round differently, in torch as well."""
    big = make_net()
    theirs = adamw(big)
    tokens, targets = zip(*[batch(0, rank=micro) for micro in range(4)])
    loss_of(big, (torch.cat(tokens), torch.cat(targets))).backward()
    theirs.step()
    allowed = relative_difference(masters_of(accumulate_in_torch(1)), masters_of(big))
    ours = accumulate(cluster, job_name, 1)
    assert relative_difference(ours, masters_of(big)) <= allowed + 1e-6


def test_evaluation_in_the_middle(cluster: Cluster, job_name: str) -> None:
    def evaluate(net: Net, step: int) -> None:
        with torch.no_grad():
            assert not net(batch(500)[0]).isnan().any()

    run(cluster, job_name, 20, adamw, each_step=evaluate)


def test_bf16_on_the_wire_is_what_the_module_computes_with(cluster: Cluster, job_name: str) -> None:
    net, reference = make_net(), make_net()
    optimizer = offload(cluster, job_name, net, wire="bf16")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.bfloat16().float())
        assert torch.equal(net(batch(0)[0]), reference(batch(0)[0]))
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    assert all(p.dtype is torch.float32 for p in net.parameters())
    masters = optimizer.full_state_dict()  # not rounded to bf16
    assert any(not torch.equal(m, m.bfloat16().float()) for m in masters.values())
    optimizer.close()


def test_bf16_modules(cluster: Cluster, job_name: str) -> None:
    net = make_net()
    net.blocks.to(torch.bfloat16)
    net.blocks[0].register_forward_pre_hook(lambda _module, inputs: (inputs[0].bfloat16(),))
    net.blocks[2].register_forward_hook(lambda _module, _inputs, output: output.float())
    optimizer = offload(cluster, job_name, net, wire="bf16")
    losses = []
    for _ in range(30):
        loss = loss_of(net, batch(0))
        losses.append(loss.item())
        loss.backward()
        assert optimizer.step().applied
    assert losses[-1] < losses[0] / 2
    optimizer.close()


def test_a_non_finite_loss_skips_the_step_and_names_the_tensor(
        cluster: Cluster, job_name: str) -> None:
    net = make_net()
    optimizer = offload(cluster, job_name, net)
    before = optimizer.full_state_dict()
    (loss_of(net, batch(0)) * float("nan")).backward()
    outcome = optimizer.step()
    assert outcome.skipped and outcome.culprit
    after = optimizer.full_state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    loss_of(net, batch(0)).backward()
    assert optimizer.step().applied
    optimizer.close()


def test_the_same_inputs_give_the_same_bits_on_every_transport_and_cluster(
        start_cluster: Callable[..., Cluster]) -> None:
    results = []
    for nodes, transport in [(1, "auto"), (1, "tcp"), (2, "auto"), (2, "tcp")]:
        cluster = start_cluster(nodes=nodes)
        net = make_net()
        optimizer = offload(
            cluster, f"job-{transport}", net, wire="bf16",
            settings=settings(transport=transport, shard_elements=1024, slots_per_worker=4))
        assert optimizer.session.info().shm_nodes == (0 if transport == "tcp" else nodes)
        for step in range(10):
            loss_of(net, batch(step)).backward()
            optimizer.step()
        results.append(optimizer.full_state_dict())
        optimizer.close()
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)


def test_a_worker_that_comes_back_finds_step_and_weights(cluster: Cluster, job_name: str) -> None:
    net = make_net()
    optimizer = offload(cluster, job_name, net)
    for step in range(3):
        loss_of(net, batch(step)).backward()
        optimizer.step()
    masters = optimizer.full_state_dict()
    optimizer.close()
    fresh = make_net(seed=9)  # its own weights are ignored
    with pytest.warns(UserWarning, match="goes on at step 3; the weights of this process"):
        offload(cluster, job_name, make_net(seed=9)).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = offload(cluster, job_name, fresh, settings=settings(restart_count=1))
    assert resumed.current_step == 3
    found = resumed.full_state_dict()
    assert all(torch.equal(masters[name], found[name]) for name in masters)
    resumed.close()


def test_forked_data_loader_workers_do_no_harm(cluster: Cluster, job_name: str) -> None:
    net = make_net()
    optimizer = offload(cluster, job_name, net)
    data = [batch(step)[0] for step in range(6)]
    for tokens in torch.utils.data.DataLoader(data, batch_size=None, num_workers=2):
        loss_of(net, (tokens, tokens)).backward()
        assert optimizer.step().applied
    assert optimizer.current_step == 6
    optimizer.close()
