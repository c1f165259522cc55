"""The demo: a GPT learns real text while all its state lives in LuWu daemons.

Run it through scripts/demo, which installs, builds, and passes its options on.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Iterator

_SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_SOURCE / "tests" / "system"))

from cluster import Cluster, ClusterError  # noqa: E402

from children import ChildFailed  # noqa: E402
from corpus import read_text  # noqa: E402
from plan import RATES, Plan  # noqa: E402
from report import save_curves, save_json, summary, table  # noqa: E402
from run import LuwuRun, Result, run_reference  # noqa: E402

# The kill comes after a third of the run, so that the replay that checks it stays short.
_KILL_FRACTION = 3
_STEPS_AFTER_KILL = 5
# A daemon is killed in a run of its own, in the middle between two durable points.
_DURABLE_EVERY = 10
_POINTS_MIN = 5  # of a short run
_CRASH_AT = 14
_CRASH_STEPS = 25


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Trains a GPT on the King James Bible with every weight and every moment in "
        "LuWu daemons, and compares it with plain torch.")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    parser.add_argument("--workers", type=int, default=2, help="trainer processes (default 2)")
    parser.add_argument("--daemons", type=int, default=2,
                        help="daemons; the first is reached by shm, the others by tcp (default 2)")
    parser.add_argument("--wire", choices=["bf16", "fp32"], default="bf16",
                        help="dtype of weights and gradients on the wire (default bf16)")
    parser.add_argument("--optimizer", choices=list(RATES), default="adamw",
                        help="of both runs (default adamw)")
    parser.add_argument("--state-precision", choices=["float32", "bfloat16", "blockwise8"],
                        default="float32", help="of moments in the daemons (default float32)")
    parser.add_argument("--master-format", choices=["float32", "split"], default="float32",
                        help="split: the served bf16 copy and the 16 bits that it lacks (default "
                        "float32)")
    parser.add_argument("--update-mode", choices=["auto", "immediate", "deferred", "speculative"],
                        default="auto", help="when gradients are applied (default auto: deferred "
                        "with --clip-norm, else immediate)")
    parser.add_argument("--clip-norm", type=float, default=0.0, metavar="NORM",
                        help="largest norm of all gradients (default: not limited)")
    parser.add_argument("--rows", type=int, default=8,
                        help="sequences per worker and step (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-kill", action="store_true",
                        help="do not kill and restart a trainer in the middle of the run, nor a "
                        "daemon afterwards")
    parser.add_argument("--out", type=Path, default=_SOURCE / "out" / "demo", metavar="DIR",
                        help="logs and loss.png (default out/demo)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the closing table there")
    parser.add_argument("--bin", type=Path, default=_SOURCE / "build" / "release" / "bin",
                        metavar="DIR", help="where luwud is (default build/release/bin)")
    options = parser.parse_args()
    os.environ.setdefault(
        "LUWU_LIBRARY", str(options.bin.resolve().parent / "lib" / "libluwu.so.1"))
    for name in ("steps", "workers", "daemons", "rows"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if not 0 <= options.clip_norm < math.inf:
        parser.error("--clip-norm must be positive, or 0 for no limit")
    if options.clip_norm and options.update_mode == "immediate":
        parser.error("--clip-norm needs --update-mode deferred or speculative")
    if options.master_format == "split" and options.wire != "bf16":
        parser.error("--master-format split needs --wire bf16")
    return options


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo like Ctrl-C, so that it ends its processes."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def verdict(main: Result, replay: Result | None, step: int) -> tuple[bool | None, str]:
    """Whether the run with the kill has the bits of its replay without, and in words."""
    if replay is None:
        return None, "not tested (nothing was killed)"
    same = (main.hashes[step] == replay.hashes[step]
            and main.losses[:step + 1] == replay.losses[:step + 1])
    word = "yes" if same else "NO"
    return same, f"{word}: losses of steps 0-{step}, masters and moments after step {step}"


def crash_run(plan: Plan, cluster: Cluster, folder: Path) -> Result:
    """The first steps once more; the last daemon is killed and restarted in the middle of them."""
    victim = len(cluster.daemons) - 1

    def crash() -> str:
        pid = cluster.daemons[victim].pid
        cluster.kill(victim)
        cluster.start(victim)
        return (f"killed daemon {cluster.nodes[victim].name} (pid {pid}) with SIGKILL and started "
                f"it again as pid {cluster.daemons[victim].pid}")

    steps = min(_CRASH_STEPS, plan.steps)
    short = Plan(**{**vars(plan), "stop_after": steps})
    print(f"training steps 0-{steps - 1} once more, and killing a daemon in the middle")
    return LuwuRun(short, cluster.endpoints, "demo-crash", folder, "crash",
                   crash_at=min(_CRASH_AT, steps // 2), crash=crash).execute()


def crash_verdict(main: Result, crashed: Result | None) -> tuple[bool | None, str]:
    """Whether the run with the crash of a daemon has the losses of the run without, in words."""
    if crashed is None:
        return None, "not tested (nothing was killed)"
    steps = len(crashed.losses)
    same = crashed.losses == main.losses[:steps] and crashed.changed_losses == 0
    word = "yes" if same else "NO"
    where = ("before anything was lost" if crashed.resumed_at is None else
             f"back at step {crashed.resumed_at}, {crashed.repeated_steps} steps repeated")
    return same, f"{word}: losses of steps 0-{steps - 1} ({where})"


def run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(options.out / "daemons", ignore_errors=True)  # jobs of an earlier demo
    text = options.out / "kjv.txt"
    read_text(text)
    plan = Plan(steps=options.steps, stop_after=options.steps, workers=options.workers,
                rows=options.rows, seed=options.seed, optimizer=options.optimizer,
                state_precision=options.state_precision, master_format=options.master_format,
                update_mode=options.update_mode, clip_norm=options.clip_norm, wire=options.wire,
                durable_every=max(1, min(_DURABLE_EVERY, options.steps // _POINTS_MIN)),
                text=text)
    kill_at = None if options.no_kill else options.steps // _KILL_FRACTION
    check_at = None if kill_at is None else min(kill_at + _STEPS_AFTER_KILL, options.steps - 1)
    replay = crashed = None
    # The usual lease: a killed trainer is noticed by its closed link, long before that.
    with Cluster(options.bin / "luwud", nodes=options.daemons, memory="2GiB", threads=1,
                 heartbeat_ms=5000, lease_ms=15000,
                 shm=[node == 0 for node in range(options.daemons)],
                 storage=True, folder=options.out / "daemons") as cluster:
        print(f"{options.daemons} daemons at {cluster.endpoints} (the first by shm, others by "
              f"tcp), {plan.workers} trainers, {plan.wire} on the wire")
        main = LuwuRun(plan, cluster.endpoints, "demo", options.out, "luwu", kill_at,
                       check_at).execute()
        if kill_at is not None and check_at is not None:
            print(f"replaying steps 0-{check_at} without the kill, to compare bits")
            short = Plan(**{**vars(plan), "stop_after": check_at + 1})
            replay = LuwuRun(short, cluster.endpoints, "demo-replay", options.out, "replay", None,
                             check_at).execute()
            crashed = crash_run(plan, cluster, options.out)
    print(f"training the same model with {plan.optimizer} of torch in one process, with the same "
          "batches")
    reference = run_reference(plan, options.out, min(plan.workers, os.cpu_count() or 1))
    identical, compared = verdict(main, replay, check_at or 0)
    survived, after_crash = crash_verdict(main, crashed)
    values = {**summary(plan, "demo", main, reference, identical),
              "same_losses_after_daemon_crash": survived,
              "resumed_at_step": None if crashed is None else crashed.resumed_at}
    print("\n" + table(values, compared, after_crash))
    save_curves(main, reference, kill_at, options.out / "loss.png")
    print(f"\nloss curves: {options.out / 'loss.png'}")
    if options.json is not None:
        save_json(values, options.json)
    return 1 if identical is False or survived is False else 0


def main() -> int:
    options = parse()
    with ends_on_signals():
        try:
            return run(options)
        except KeyboardInterrupt:
            print("\ndemo: interrupted; all its processes are ended", file=sys.stderr)
            return 130
        except (ChildFailed, ClusterError) as error:
            print(f"\ndemo: {error}\ndemo: logs are in {options.out}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
