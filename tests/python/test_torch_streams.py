"""The stream that goes with GPU memory, without a GPU: the CPU plays one, whose streams record what
they are made to wait for. That the library orders its copies with a stream is tested in tests/gpu.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_session import FakeOperation, FakeSession
from torch import nn

import luwu
import luwu.torch
from luwu.torch import streams


class Stream:
    """Compares by identity, as the wrappers of one CUDA stream compare equal."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.waits: list[int] = []

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other.cuda_stream)


class GpuSession(FakeSession):
    """Notes the stream of each transfer."""

    def __init__(self, job: luwu.JobSpec) -> None:
        super().__init__(job)
        self.streams: list[tuple[str, int]] = []

    def fetch_async(self, *arguments: Any, stream: int, **options: Any) -> FakeOperation:
        self.streams.append(("fetch", stream))
        return super().fetch_async(*arguments, **options)

    def push_async(self, *arguments: Any, stream: int, **options: Any) -> FakeOperation:
        self.streams.append(("push", stream))
        return super().push_async(*arguments, **options)


@pytest.fixture
def on_stream(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """A list whose last entry is the present stream."""
    stack = [Stream(1)]
    monkeypatch.setattr(streams, "current", lambda device: stack[-1])
    return stack


def offloaded() -> tuple[nn.Module, luwu.torch.OffloadedOptimizer, GpuSession]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    made: list[GpuSession] = []

    def connect(job: luwu.JobSpec) -> Any:
        made.append(GpuSession(job))
        return made[-1]

    optimizer = luwu.torch.offload(
        model, units=nn.Linear, optimizer=luwu.SGD(lr=0.1), wire="fp32", connect=connect)
    return model, optimizer, made[0]


def test_every_transfer_names_the_present_stream(on_stream: list[Stream]) -> None:
    model, optimizer, session = offloaded()
    for number in (5, 6):
        on_stream[:] = [Stream(number)]
        session.streams.clear()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        assert {each for each in session.streams} == {("fetch", number), ("push", number)}
        assert on_stream[0].waits == []  # one stream needs no order of ours


def test_work_on_another_stream_is_ordered_with_the_memorys_owner(on_stream: list[Stream]) -> None:
    model, optimizer, session = offloaded()
    first, second = Stream(1), Stream(2)
    on_stream[:] = [first]
    with torch.no_grad():
        model(torch.ones(3, 4))  # the order of the units is known from now on
    unit = optimizer._units[0]
    optimizer._residency._start(unit)  # begins on the first stream ...
    on_stream[:] = [second]
    optimizer._residency.materialise(unit)  # ... is used on the second
    assert (first.waits, second.waits) == ([], [1])
    optimizer._residency.release(unit)  # and goes back to the first after that
    assert (first.waits, second.waits) == ([2], [1])


def test_the_cpu_has_no_streams() -> None:
    assert streams.current(torch.device("cpu")) is None
    assert streams.argument(None) == {}
    streams.before_use(None, torch.device("cpu"))
    streams.after_use(None, torch.device("cpu"))


def test_modules_on_other_devices_and_on_several_are_refused() -> None:
    with pytest.raises(luwu.UnsupportedError, match="meta"):
        luwu.torch.offload(nn.Linear(2, 2, device="meta"), units=[], connect=FakeSession)


def test_a_host_buffer_with_a_stream_is_refused() -> None:
    with pytest.raises(luwu.UnsupportedError, match="not in GPU memory"):
        luwu.buffers.memory_of(torch.zeros(3), True, gpu=True)
