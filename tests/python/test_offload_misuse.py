"""Programs that are not quite right: an error that says so, and never wrong weights or a crash."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from cluster import Cluster
from fake_session import FakeSession
from fake_training import assert_equal_weights, start
from models import Block, Net, batch, loss_of, make_net
from torch import nn

import luwu
import luwu.torch as lt


def train_both(optimizer: Any, net: nn.Module, reference: Net, steps: int) -> None:
    """Both go on from equal weights, the reference with a new AdamW."""
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for step in range(steps):
        for each, end in ((net, optimizer), (reference, theirs)):
            end.zero_grad()
            loss_of(each, batch(step)).backward()
            end.step()
    assert_equal_weights(net, reference)


# ---- materialized() -----------------------------------------------------------------------------


def test_a_step_inside_materialized_is_refused_and_later_forwards_see_new_weights() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    with optimizer.materialized():
        loss_of(net, batch(0)).backward()
        with pytest.raises(luwu.StateError, match="materialized"):
            optimizer.step()
        with pytest.raises(luwu.StateError, match="materialized"):
            optimizer.restore()
    assert optimizer.step().applied
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    loss_of(reference, batch(0)).backward()
    theirs.step()
    assert_equal_weights(net, reference)
    with optimizer.materialized(), torch.no_grad():
        assert loss_of(net, batch(1)) == loss_of(reference, batch(1))
        assert torch.equal(net.blocks[0].up.weight, reference.blocks[0].up.weight)
    assert optimizer.resident_bytes() == 0


def test_a_step_inside_a_forward_is_refused() -> None:
    net = make_net()
    optimizer, _ = start(net)
    hook = net.blocks[1].norm.register_forward_hook(lambda *_: optimizer.step() and None)
    with pytest.raises(luwu.StateError, match="inside a forward"):
        loss_of(net, batch(0))
    hook.remove()
    train_both(optimizer, net, make_net(), 2)


def test_weights_of_an_older_step_are_fetched_again() -> None:
    net = make_net()
    optimizer, session = start(net)
    unit = optimizer._units[1]
    optimizer._residency.materialise(unit)
    loss_of(net, batch(0)).backward()
    optimizer.step()
    optimizer._residency.materialise(unit)
    unit.version = 0  # as if the release after the commit had passed it by
    fetches = len(session.log)
    optimizer._residency.materialise(unit)
    assert session.log[fetches:] == [("fetch", 1, 1)] and unit.version == 1
    optimizer._residency.release_idle()


# ---- offload() that fails -----------------------------------------------------------------------


def test_offload_refuses_a_replaced_forward_before_anything_is_changed() -> None:
    net, reference = make_net(), make_net()
    net.blocks[1].forward = net.blocks[1].forward
    sessions: list[Any] = []
    with pytest.raises(luwu.StateError, match="Block.forward is already replaced"):
        start(net, connect=sessions.append)
    assert not sessions
    assert_equal_weights(net, reference)
    del net.blocks[1].forward
    train_both(start(net)[0], net, reference, 2)


@pytest.mark.parametrize("where", ["luwu.torch.storage.FlatStorage.release",
                                   "luwu.torch.hooks.Hooks._install",
                                   "luwu.torch.masters.Masters._guard"])
def test_an_offload_that_fails_gives_weights_and_gradients_back(
        monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    net, reference = make_net(), make_net()
    loss_of(net, batch(0)).backward()
    owner, _, name = where.rpartition(".")
    module, _, kind = owner.rpartition(".")
    kind = getattr(__import__(module, fromlist=[kind]), kind)
    real, calls = getattr(kind, name), [0]

    def failing(*args: Any) -> Any:
        real(*args)
        calls[0] += 1
        if calls[0] == (2 if name == "release" else 1):
            raise MemoryError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, failing)
        with pytest.raises(MemoryError):
            start(net)
    assert all(p.grad is not None and type(p) is nn.Parameter for p in net.parameters())
    assert all("forward" not in vars(part) for part in net.modules())
    assert_equal_weights(copy.deepcopy(net), reference)
    train_both(start(net)[0], net, reference, 2)


def test_an_offload_that_fails_leaves_no_session_and_no_job(
        cluster: Cluster, job_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise MemoryError("no more")

    how: dict[str, Any] = dict(units=Block, endpoints=cluster.endpoints, job=job_name, rank=0,
                               world_size=1)
    net = make_net()
    with monkeypatch.context() as patch:
        patch.setattr("luwu.torch.hooks.Hooks._install", failing)
        with pytest.raises(MemoryError):
            lt.offload(net, **how)
    with pytest.raises(luwu.NotFoundError):
        luwu.delete_job(cluster.endpoints, job_name)
    lt.offload(net, **how).close()


def test_offload_refuses_a_closed_module_whose_weights_are_gone() -> None:
    net = make_net()
    optimizer, _ = start(net)
    optimizer.close()
    with pytest.raises(luwu.StateError, match="'embedding.weight' has no weights.*restore"):
        start(net)
    with pytest.raises(luwu.StateError, match="not in memory"):
        net(batch(0)[0])


@pytest.mark.parametrize("clip", [-1.0, float("nan"), -float("inf")])
def test_offload_refuses_a_norm_limit_that_is_negative_or_nan(clip: float) -> None:
    with pytest.raises(luwu.ArgumentError, match="clip_grad_norm is"):
        start(make_net(), clip_grad_norm=clip)
    optimizer, _ = start(make_net(), clip_grad_norm=1.0)
    with pytest.raises(luwu.ArgumentError, match="max_norm is"):
        optimizer.set_max_norm(clip)


def test_an_infinite_norm_limit_means_none_as_in_torch() -> None:
    net = make_net()
    optimizer, session = start(net, clip_grad_norm=float("inf"))
    loss_of(net, batch(0))
    assert session.max_norm == [0.0]


# ---- a job that has its weights already ---------------------------------------------------------


def join_at(step: int, **settings: Any) -> lt.OffloadedOptimizer:
    def connect(job: luwu.JobSpec) -> Any:
        session = FakeSession(job)
        session.finish_load()
        session.step = step
        return session

    return lt.offload(make_net(), units=Block, job="run-1", rank=settings.pop("rank", 0),
                      wire="fp32", connect=connect, settings=lt.Settings(**settings))


def test_joining_a_job_under_way_says_that_the_weights_are_ignored() -> None:
    with pytest.warns(UserWarning, match="'run-1' goes on at step 3; the weights of this process "
                                         r"are ignored.*\(luwuctl delete run-1\)") as told:
        join_at(3)
    assert [each.filename for each in told] == [__file__]


def test_the_warning_as_an_error_leaves_the_module_as_it_was() -> None:
    net, reference = make_net(), make_net()
    sessions: list[FakeSession] = []

    def connect(job: luwu.JobSpec) -> Any:
        sessions.append(FakeSession(job))
        sessions[0].finish_load()
        sessions[0].step = 1
        return sessions[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="goes on at step 1"):
            start(net, connect=connect)
    assert_equal_weights(net, reference)
    train_both(start(net)[0], net, reference, 2)


@pytest.mark.parametrize("step, settings, environment", [
    (0, {}, "0"), (3, dict(restart_count=1), "0"), (3, {}, "2"), (3, dict(rank=1), "0"),
])
def test_new_jobs_restarted_workers_and_other_ranks_do_not_warn(
        step: int, settings: dict[str, Any], environment: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", environment)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert join_at(step, **settings).current_step == step


# ---- threads ------------------------------------------------------------------------------------


def test_forwards_of_several_threads_take_turns_and_are_right() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    with torch.no_grad():
        expected = reference(batch(0)[0])
    wrong: list[Any] = []

    def evaluate() -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    if not torch.equal(net(batch(0)[0]), expected):
                        wrong.append("other result")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    train_both(optimizer, net, reference, 2)


def test_a_forward_in_another_thread_during_backward_disturbs_nothing() -> None:
    net, reference = make_net(), make_net()
    optimizer, _ = start(net)
    seen: list[Any] = []

    def other(train: bool) -> None:
        try:
            with torch.set_grad_enabled(train):
                seen.append(net(batch(3)[0]))
        except Exception as error:
            seen.append(error)

    def in_backward(_gradient: torch.Tensor) -> None:
        for train in (False, True):
            thread = threading.Thread(target=other, args=(train,))
            thread.start()
            thread.join()

    with torch.no_grad():
        expected = reference(batch(3)[0])

    def tap(_module: Any, _inputs: Any, out: torch.Tensor) -> None:
        out.register_hook(in_backward)

    handle = net.blocks[0].register_forward_hook(tap)
    loss = loss_of(net, batch(0))
    handle.remove()
    loss.backward()
    assert torch.equal(seen[0], expected)
    assert isinstance(seen[1], luwu.StateError) and "another thread" in str(seen[1])
    assert optimizer.step().applied
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    loss_of(reference, batch(0)).backward()
    theirs.step()
    assert_equal_weights(net, reference)


# ---- weights used outside of their unit ---------------------------------------------------------


def test_out_proj_of_an_attention_cannot_be_a_unit() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with pytest.raises(luwu.ArgumentError, match="'self_attn.out_proj' cannot be .*'self_attn'"):
        start(layer, units=nn.Linear)


def test_an_attention_as_a_unit_equals_torch() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    reference, x = copy.deepcopy(layer), torch.randn(4, 5, 16)
    optimizer, _ = start(layer, units=lambda name, m: isinstance(
        m, (nn.MultiheadAttention, nn.Linear)) and not name.endswith("out_proj"))
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    for _ in range(2):
        for each, end in ((layer, optimizer), (reference, theirs)):
            end.zero_grad()
            each(x).square().mean().backward()
            end.step()
    assert_equal_weights(layer, reference)
    layer.eval(), reference.eval()
    with torch.no_grad():
        assert torch.allclose(layer(x), reference(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_unit_whose_weight_is_computed_before_its_forward_is_refused(norm: Any) -> None:
    net = nn.Sequential(norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    with pytest.raises(luwu.ArgumentError, match="'0' cannot be a unit.*Norm"):
        start(net, units=nn.Linear)
    optimizer, _ = start(nn.Sequential(net), units=nn.Sequential)
    assert optimizer.module(torch.ones(2, 4)).isfinite().all()


class Functional(nn.Module):
    """Uses the weight of another unit."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.b(x), self.a.weight)


def test_a_weight_used_by_a_foreign_forward_is_named_instead_of_giving_nan() -> None:
    net = Functional()
    start(net, units=nn.Linear)
    with pytest.raises(luwu.StateError, match=r"linear\(\) needs .*'a.weight'.*`units`"):
        net(torch.ones(2, 4))


@pytest.mark.parametrize("use", [
    lambda p: p.isnan(), lambda p: p + 1, lambda p: p.sum().item(), lambda p: p.numpy(),
    lambda p: p.tolist(), lambda p: p.data.clone(), lambda p: p.detach() * 2, lambda p: p.view(-1),
    lambda p: torch.stack([p, p]), lambda p: copy.deepcopy(p), lambda p: p.clamp_(0, 1),
    lambda p: p.fill_(1.0), lambda p: p.data.mul_(2), lambda p: nn.init.zeros_(p),
    lambda p: p.copy_(torch.ones(p.shape)), lambda p: setattr(p, "data", torch.ones(p.shape)),
])
@pytest.mark.parametrize("name", ["a.weight", "scale"])
def test_reading_or_writing_a_released_parameter_is_an_error(use: Any, name: str) -> None:
    net = Functional()
    optimizer, _ = start(net, units=nn.Linear)
    before = net.state_dict()[name]
    with torch.no_grad(), pytest.raises(luwu.StateError, match=f"'{name}', which are not in mem"):
        use(dict(net.named_parameters())[name])
    assert torch.equal(net.state_dict()[name], before)


def test_what_does_not_touch_the_values_of_a_released_parameter_works() -> None:
    net = Functional()
    optimizer, _ = start(net, units=nn.Linear)
    weight = net.a.weight
    assert weight.shape == (4, 4) and weight.numel() == 16 and weight.dtype is torch.float32
    assert weight.requires_grad and weight.grad is None and weight.is_leaf and not weight.is_cuda
    assert isinstance(weight, nn.Parameter) and weight in {weight} and lt.is_placeholder(weight)
    assert "not in memory" in repr(weight) and "a.weight" in f"{weight}"
    assert torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) == 0.0
    weight.register_hook(lambda grad: grad).remove()
    optimizer.restore()
    assert type(weight) is nn.Parameter and not vars(weight) and (weight + 1).isfinite().all()


def test_tracing_an_offloaded_module_is_refused() -> None:
    net = Functional()
    start(net, units=[])
    with pytest.raises(luwu.UnsupportedError, match="traced"):
        torch.jit.trace(net, torch.ones(2, 4))


def test_a_fetch_given_up_by_an_interrupt_ends_before_its_memory_is_used_again() -> None:
    net = make_net()
    optimizer, session = start(net)
    real, operations = session.fetch_async, []

    def fetch(layer: int, *args: Any) -> Any:
        assert all(done.done for other, done in operations if other == layer)
        operations.append((layer, real(layer, *args)))
        return operations[-1][1]

    session.fetch_async = fetch  # type: ignore[method-assign]
    session.fail_next = {"fetch": [KeyboardInterrupt()]}  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        loss_of(net, batch(0))
    assert not operations[0][1].done
    train_both(optimizer, net, make_net(), 2)


# ---- backward passes that cannot be -------------------------------------------------------------


def test_a_backward_of_an_older_step_is_named_and_training_goes_on() -> None:
    net, reference = make_net(), make_net()
    optimizer, session = start(net)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    old = loss_of(net, batch(7))
    for step in range(2):
        for each, end in ((net, optimizer), (reference, theirs)):
            end.zero_grad()
            loss_of(each, batch(step)).backward()
            end.step()
        if step == 0:
            pushes = len(session.log)
            with pytest.raises(luwu.StateError, match="forward of step 0 in step 1"):
                old.backward()
            assert session.log[pushes:] == []
    assert_equal_weights(net, reference)


def test_a_refused_push_does_not_count_and_the_pass_can_be_repeated() -> None:
    net = make_net()
    optimizer, session = start(net)
    real = session.push_async

    def refused(*_: Any) -> Any:
        raise luwu.StateError("not now")

    session.push_async = refused  # type: ignore[method-assign]
    with pytest.raises(luwu.StateError, match="not now"):
        loss_of(net, batch(0)).backward()
    session.push_async = real  # type: ignore[method-assign]
    train_both(optimizer, net, make_net(), 2)


def test_second_derivatives_are_refused_and_training_goes_on() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, _ = start(net, units=nn.Linear)
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(luwu.UnsupportedError, match="create_graph"):
        torch.autograd.grad(net(x).sum(), x, create_graph=True)
    net(x).sum().backward()
    assert optimizer.step().applied


# ---- loading a state dict -----------------------------------------------------------------------


@pytest.mark.parametrize("state", [{}, {"param_groups": None}, {"param_groups": [3]}])
def test_a_state_dict_without_parameter_groups_is_named(state: dict[str, Any]) -> None:
    optimizer, _ = start(make_net())
    with pytest.raises(luwu.ArgumentError, match="param_groups"):
        optimizer.load_state_dict(state)


# ---- arguments of a session ---------------------------------------------------------------------


def spec(name: str = "job", layer: str = "layer", tensor: str = "tensor") -> luwu.JobSpec:
    return luwu.JobSpec(name, 1, (luwu.layer_of(layer, [(tensor, (8,))]),))


@pytest.mark.parametrize("match, job, how", [
    ("rank is 4294967296", spec(), dict(rank=2**32)), ("rank is -1", spec(), dict(rank=-1)),
    ("restart_count", spec(), dict(rank=0, restart_count=2**64)),
    ("job name .* NUL", spec("a\0b"), dict(rank=0)),
    ("layer name .* NUL", spec(layer="a\0b"), dict(rank=0)),
    ("tensor name .* NUL", spec(tensor="a\0b"), dict(rank=0)),
    ("timeout is NaN", spec(), dict(rank=0, timeout_s=float("nan"))),
])
def test_session_arguments_that_c_would_cut_are_refused(
        match: str, job: luwu.JobSpec, how: dict[str, Any]) -> None:
    with pytest.raises(luwu.ArgumentError, match=match):
        luwu.Session("127.0.0.1:1", job, **how)


def test_versions_and_timeouts_of_calls_are_checked(cluster: Cluster, job_name: str) -> None:
    with luwu.Session(cluster.endpoints, spec(job_name), 0) as session:
        session.load(0, np.zeros(session.job.layers[0].elements, np.float32))
        session.finish_load(timeout_s=float("inf"))
        for call in (lambda: session.fetch(0, -1), lambda: session.fetch(0, 2**64),
                     lambda: session.commit(-1), lambda: session.begin_step(-1),
                     lambda: session.fetch(0, 0, timeout_s=float("nan")),
                     lambda: session.commit(0, timeout_s=float("nan"))):
            with pytest.raises(luwu.ArgumentError, match="-1|18446744073709551616|NaN"):
                call()
        assert session.fetch(0, 0, timeout_s=float("inf")).sum() == 0
