"""Runs of the demo: with LuWu (several trainers, perhaps one killed) and the plain reference."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from children import Child, Family
from plan import Plan
from progress import Progress

_SILENCE_S = 180
# The rates leave out the first steps, in which memory is touched for the first time.
_SKIPPED_STEPS = 3


@dataclass
class Result:
    """What a run gave. ``losses``: mean over the workers, by step. ``hashes``: by step."""

    losses: list[float] = field(default_factory=list)
    held_out: float = 0.0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    state_bytes: int = 0  # in the trainers (or the reference process), between steps
    peak_bytes: int = 0  # in one trainer, with units in flight
    hashes: dict[int, str] = field(default_factory=dict)
    status: Any = None
    killed: bool = False
    skipped_steps: int = 0
    clipped_steps: int = 0
    grad_norm: float = 0.0  # of the last step
    resumed_at: int | None = None  # the step that a restarted daemon's point had
    repeated_steps: int = 0  # computed again after that
    changed_losses: int = 0  # of those, the ones whose loss was another than before


@dataclass(frozen=True)
class LuwuRun:
    """A run against daemons. ``kill_at``: the step in which the last rank is killed, or None.
    ``hash_at``: the step after which the state is hashed. ``crash``: called once, after step
    ``crash_at``, to kill and restart a daemon."""

    plan: Plan
    endpoints: str
    job: str
    folder: Path
    label: str
    kill_at: int | None = None
    hash_at: int | None = None
    crash_at: int | None = None
    crash: Callable[[], str] | None = None

    def _trainer(self, rank: int, restart_count: int, hold: bool) -> Child:
        arguments = self.plan.arguments() + [
            "--endpoints", self.endpoints, "--job", self.job, "--rank", str(rank),
            "--restart-count", str(restart_count),
            "--hold-at", str(self.kill_at if hold and self.kill_at is not None else -1),
            "--hash-at", str(-1 if self.hash_at is None else self.hash_at)]
        return Child("worker.py", arguments, self.folder, f"{self.label}-rank{rank}", threads=1)

    def execute(self) -> Result:
        """Trains and returns the result. Every trainer has ended when this returns or raises."""
        result = Result()
        meter = _Meter(self.plan)
        victim = self.plan.workers - 1
        crashed = False
        with Family() as family, Progress(self.label, self.plan.stop_after) as progress:
            for rank in range(self.plan.workers):
                family.add(self._trainer(rank, 0, hold=rank == victim))
            for child, event in family.events(_SILENCE_S):
                rank = int(child.name.rsplit("rank", 1)[1])
                kind = event["event"]
                if kind == "start" and event["step"] > 0:
                    progress.note(f"rank {rank} is back as pid {child.pid} and resumes at step "
                                  f"{event['step']}")
                elif kind == "mid_step":
                    pid = family.kill(child.name)
                    progress.note(f"killed rank {rank} (pid {pid}) with SIGKILL in the middle of "
                                  f"the backward pass of step {event['step']}; starting it again")
                    result.killed = True
                    family.add(self._trainer(rank, 1, hold=False))
                elif kind == "resume":
                    meter.forget(rank, event["step"])
                    if result.resumed_at is None:
                        progress.note(f"rank {rank}: {event['why']}")
                    result.resumed_at = event["step"]
                elif kind == "step":
                    meter.add(rank, event, result, progress)
                    if self.crash is not None and not crashed and event["step"] == self.crash_at:
                        crashed = True
                        progress.note(self.crash())
                elif kind == "state":
                    result.hashes[event["step"]] = event["sha256"]
                elif kind == "final":
                    result.held_out, result.status = event["held_out"], event["status"]
        meter.finish(result)
        return result


class _Meter:
    """Puts the workers' events together."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps: dict[int, dict[int, float]] = {}
        self._bytes: dict[int, tuple[int, int]] = {}
        self._times: list[float] = []

    def add(self, rank: int, event: dict[str, Any], result: Result, progress: Progress) -> None:
        step = event["step"]
        losses = self._steps.setdefault(step, {})
        losses[rank] = event["loss"]
        self._bytes[rank] = (event["fetched"], event["pushed"])
        result.state_bytes = max(result.state_bytes, event["resident"])
        result.peak_bytes = max(result.peak_bytes, event["peak"])
        if len(losses) == self._plan.workers:
            self._times.append(time.monotonic())
            self._set_loss(step, sum(losses[each] for each in sorted(losses)) / len(losses), result)
            result.skipped_steps += not event["applied"]
            result.clipped_steps += event["clipped"]
            result.grad_norm = event["grad_norm"]
            progress.step(step, result.losses[step], self._rate(),
                          sum(f for f, _ in self._bytes.values()),
                          sum(p for _, p in self._bytes.values()))

    @staticmethod
    def _set_loss(step: int, loss: float, result: Result) -> None:
        if step < len(result.losses):
            result.repeated_steps += 1
            result.changed_losses += loss != result.losses[step]
            result.losses[step] = loss
        else:
            result.losses.append(loss)

    def forget(self, rank: int, step: int) -> None:
        """``rank`` will compute ``step`` and what follows once more."""
        for later in self._steps:
            if later >= step:
                self._steps[later].pop(rank, None)

    def _rate(self) -> float:
        recent = self._times[-20:]
        if len(recent) < 2:
            return 0.0
        return self._plan.tokens_per_step * (len(recent) - 1) / (recent[-1] - recent[0])

    def finish(self, result: Result) -> None:
        times = self._times[_SKIPPED_STEPS:]
        if len(self._times) > 1:
            result.seconds = self._times[-1] - self._times[0]
        if len(times) > 1:
            result.tokens_per_s = (
                self._plan.tokens_per_step * (len(times) - 1) / (times[-1] - times[0]))


def run_reference(plan: Plan, folder: Path, threads: int) -> Result:
    """Trains the same model with plain torch in one process."""
    result = Result()
    started = time.monotonic()
    with Family() as family, Progress("reference", plan.stop_after) as progress:
        family.add(Child("reference.py", plan.arguments(), folder, "reference", threads))
        for _, event in family.events(_SILENCE_S):
            if event["event"] == "step":
                result.losses.append(event["loss"])
                result.seconds = time.monotonic() - started
                rate = plan.tokens_per_step * len(result.losses) / result.seconds
                progress.step(event["step"], event["loss"], rate)
            else:
                result.held_out = event["held_out"]
                result.state_bytes = event["state_bytes"]
    return result
