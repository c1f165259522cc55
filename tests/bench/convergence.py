#!/usr/bin/python3
"""Loss curves of the demo's model with its optimizer state in each precision, next to each other.

All runs have the same initial weights and the same batches; only ``state_precision`` differs. Needs
a build and the demo's text (both made by scripts/demo).

    tests/bench/convergence.py --steps 150 --json out/convergence.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_SOURCE / "scripts" / "demo_train"), str(_SOURCE / "tests" / "system")]

from cluster import Cluster, ClusterError  # noqa: E402

from children import ChildFailed  # noqa: E402
from corpus import read_text  # noqa: E402
from plan import RATES, Plan  # noqa: E402
from report import final_loss  # noqa: E402
from run import LuwuRun, Result  # noqa: E402

PRECISIONS = ["float32", "bfloat16", "blockwise8"]
_ROWS_SHOWN = 15


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="sequences per worker and step")
    parser.add_argument("--optimizer", choices=list(RATES), default="adamw")
    parser.add_argument("--master-format", choices=["float32", "split"], default="float32")
    parser.add_argument("--clip-norm", type=float, default=0.0)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=_SOURCE / "out" / "convergence", metavar="DIR")
    parser.add_argument("--bin", type=Path, default=_SOURCE / "build" / "release" / "bin",
                        metavar="DIR", help="where luwud is (default build/release/bin)")
    return parser.parse_args()


def table(results: dict[str, Result]) -> str:
    """A row every few steps, and how far the curves are apart."""
    names = list(results)
    first = results[names[0]]
    every = max(1, len(first.losses) // _ROWS_SHOWN)
    lines = ["step    " + "".join(name.rjust(12) for name in names)]
    for step in range(0, len(first.losses), every):
        lines.append(f"{step:<8}" + "".join(
            f"{results[name].losses[step]:12.4f}" for name in names))
    for label, value in (("last 10", lambda r: final_loss(r.losses)),
                         ("held out", lambda r: r.held_out)):
        lines.append(f"{label:<8}" + "".join(f"{value(results[name]):12.4f}" for name in names))
    for name in names[1:]:
        worst = max(abs(a - b) for a, b in zip(first.losses, results[name].losses))
        lines.append(f"{name}: at most {worst:.4f} from {names[0]} in any step, "
                     f"{final_loss(results[name].losses) - final_loss(first.losses):+.4f} at the "
                     "end")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    options.out.mkdir(parents=True, exist_ok=True)
    text = options.out / "kjv.txt"
    read_text(text)
    results: dict[str, Result] = {}
    with Cluster(options.bin / "luwud", nodes=2, shm=[True, False], memory="2GiB", threads=1,
                 heartbeat_ms=5000, lease_ms=15000, folder=options.out / "daemons") as cluster:
        for precision in options.precisions:
            plan = Plan(steps=options.steps, stop_after=options.steps, workers=options.workers,
                        rows=options.rows, seed=options.seed, optimizer=options.optimizer,
                        state_precision=precision, master_format=options.master_format,
                        clip_norm=options.clip_norm, text=text)
            results[precision] = LuwuRun(
                plan, cluster.endpoints, f"convergence-{precision}", options.out,
                precision).execute()
    if not all(math.isfinite(loss) for result in results.values() for loss in result.losses):
        raise SystemExit("convergence: a loss is not finite")
    print("\n" + table(results))
    return {
        "optimizer": options.optimizer, "steps": options.steps, "workers": options.workers,
        "rows": options.rows, "seed": options.seed, "master_format": options.master_format,
        "clip_norm": options.clip_norm or None,
        "losses": {name: result.losses for name, result in results.items()},
        "final_loss": {name: final_loss(result.losses) for name, result in results.items()},
        "held_out_loss": {name: result.held_out for name, result in results.items()},
    }


def main() -> int:
    options = parse()
    os.environ.setdefault(
        "LUWU_LIBRARY", str(options.bin.resolve().parent / "lib" / "libluwu.so.1"))
    try:
        values = run(options)
    except (ChildFailed, ClusterError) as error:
        print(f"convergence: {error}\nconvergence: logs are in {options.out}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(values, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
