"""Kills daemons again and again under a training, at random moments and at named places of the
storage, and holds what comes back against an oracle.

    kill_tester.py --kills 200 [--seed 1] [--nodes 3] [--bin DIR]

Real daemons, real disks. After each kill the daemon is started again, often in the middle of the
recovery from the last one, and by chance with a failpoint (common/base/failpoint.h) at which it
kills itself the next time. What must hold, and is checked at every step:

 - every fetched weight is that of an undisturbed run, to the bit: no step is lost, doubled
   or mixed;
 - a step that a commit called logged or synced is never gone back behind;
 - the job comes back within a time limit, and named checkpoints made on the way can be restored.

Prints one JSON object at the end: kills by kind, rollbacks, failpoints that were reached. The exit
status is 1 when something does not hold; the seed repeats the same plan of kills.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_SOURCE / "client" / "python"), str(_SOURCE / "tests" / "system")]

import luwu  # noqa: E402
from cluster import Cluster, ClusterError  # noqa: E402
from durable_training import Oracle, Trainer, job_of  # noqa: E402

# Where a daemon may end itself: all places of the storage that make something durable, and those of
# the recovery.
FAILPOINTS = [
    "persist.open", "persist.write", "persist.written", "persist.commit.before",
    "persist.commit.after_sync", "persist.commit.after", "persist.confirm", "persist.checkpoint",
    "persist.rollback.before", "persist.rollback.after", "persist.read", "persist.free",
]
_KILL_PAUSE_S = (0.0, 0.6)
_STALL_S = 120.0


class Killer(threading.Thread):
    """Ends and restarts daemons until the number of kills is reached."""

    def __init__(self, cluster: Cluster, kills: int, seed: int, log: Path) -> None:
        super().__init__(name="killer")
        self._cluster = cluster
        self._left = kills
        self._chance = random.Random(seed)
        self._log = log
        self.count: Counter = Counter()
        self.error: BaseException | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while self._left > 0 and not self.stop.is_set():
                self._one_round()
        except BaseException as error:  # told by the main thread
            self.error = error

    def _one_round(self) -> None:
        chance = self._chance
        nodes = list(range(len(self._cluster.daemons)))
        victims = chance.choice([[chance.choice(nodes)], [chance.choice(nodes)], nodes])
        if chance.random() < 0.5:
            self._kill_now(victims)
        else:
            for node in victims:
                self._kill_at_failpoint(node)
        self.stop.wait(chance.uniform(*_KILL_PAUSE_S))

    def _kill_now(self, victims: list) -> None:
        for node in victims:
            self._cluster.kill(node)
            self._left -= 1
            self.count["at random"] += 1
        for node in victims:
            self._start(node)

    def _kill_at_failpoint(self, node: int) -> None:
        """Restarts the daemon with a place at which it will end itself, and waits for that."""
        name, turn = self._chance.choice(FAILPOINTS), self._chance.randint(1, 6)
        self._cluster.kill(node)
        self._left -= 1
        self.count["at random"] += 1
        daemon = self._cluster.daemons[node]
        try:
            self._start(node, f"{name}=kill@{turn}")
            end = time.monotonic() + self._chance.uniform(0.5, 4.0)
            while daemon.alive() and time.monotonic() < end and not self.stop.is_set():
                time.sleep(0.01)
        except ClusterError:
            pass  # it ended itself while it started
        if daemon.alive():
            self._cluster.kill(node)
            self.count["at random"] += 1
        else:
            self.count[name] += 1
        self._left -= 1
        self._start(node)

    def _start(self, node: int, failpoints: str = "") -> None:
        daemon = self._cluster.daemons[node]
        daemon.env = {**os.environ, "LUWU_FAILPOINT_LOG": str(self._log)}
        # Never true, but while some point is configured all that are reached go into the log.
        daemon.env["LUWU_FAILPOINTS"] = failpoints or "none=off"
        self._cluster.start(node)


def checkpoint(options: argparse.Namespace, cluster: Cluster, *arguments: str) -> bool:
    """Whether luwuctl could do it: daemons may be down at the moment."""
    done = subprocess.run(
        [options.bin / "luwuctl", "-e", cluster.endpoints, "--timeout-ms", "20000", "checkpoint",
         *arguments], capture_output=True, text=True, check=False)
    return done.returncode == 0


def train(options: argparse.Namespace, cluster: Cluster, killer: Killer) -> Trainer:
    """Trains while the killer is at work. AssertionError when the oracle objects."""
    trainer = Trainer(cluster.endpoints, job_of(
        "crash", durable_every=options.durable_every, durability=options.durability), Oracle())
    # Before its first point is complete a job cannot come back. The commit before a point waits for
    # the point before that one.
    trainer.train_until(2 * options.durable_every)
    killer.start()
    kept = 0
    while killer.is_alive():
        trainer.train_until(trainer.step + 1, _STALL_S)
        if options.checkpoints and trainer.step % 16 == 0:
            kept += checkpoint(options, cluster, "create", "crash", f"c{trainer.step}")
    killer.join()
    if killer.error is not None:
        raise killer.error
    trainer.train_until(trainer.step + 3, _STALL_S)
    trainer.check()
    return trainer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--durable-every", type=int, default=1)
    parser.add_argument("--durability", choices=["memory", "logged", "synced"], default="logged")
    parser.add_argument("--engine", choices=["auto", "extents", "rocksdb_values"], default="auto")
    parser.add_argument("--checkpoints", action="store_true", help="make some on the way")
    parser.add_argument("--bin", type=Path, default=Path(
        os.environ.get("LUWU_BIN", _SOURCE / "build" / "release" / "bin")), metavar="DIR")
    parser.add_argument("--folder", type=Path, help="keep data and logs here")
    options = parser.parse_args()
    os.environ.setdefault("LUWU_LIBRARY", str(options.bin.resolve().parent / "lib/libluwu.so.1"))
    return options


def main() -> int:
    options = parse()
    started = time.monotonic()
    with Cluster(options.bin / "luwud", nodes=options.nodes, memory="64MiB", storage=True,
                 storage_settings=f'engine = "{options.engine}"', folder=options.folder) as cluster:
        log = cluster.folder / "failpoints.log"
        killer = Killer(cluster, options.kills, options.seed, log)
        error, trainer = None, None
        try:
            trainer = train(options, cluster, killer)
        except (AssertionError, luwu.LuwuError, ClusterError) as caught:
            error = f"{type(caught).__name__}: {caught}"
            for daemon in cluster.daemons:
                print(daemon.log_tail(40), file=sys.stderr)
        finally:
            killer.stop.set()
            if killer.is_alive():
                killer.join()
        reached = sorted(set(log.read_text().split())) if log.exists() else []
    print(json.dumps({
        "kills": sum(killer.count.values()), "by_kind": dict(killer.count),
        "steps": trainer.step if trainer else None,
        "rollbacks": len(trainer.rollbacks) if trainer else None,
        "failpoints_reached": reached, "seed": options.seed, "error": error,
        "seconds": round(time.monotonic() - started, 1)}, indent=2))
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
