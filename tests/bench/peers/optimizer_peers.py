#!/usr/bin/python3
"""The engine next to what people use today, in one process, round by round.

    cmake --build --preset release --target luwu_engine_shim
    tests/bench/peers/optimizer_peers.py --params 100M --threads 2 --json peers.json

Every candidate does the same job: sum two bf16 gradients, AdamW on fp32 state, bf16 copy of the new
weights. torch runs its foreach loop over one flat tensor, with a warmed allocator (the process
starts itself again with the settings). DeepSpeed's CPUAdam takes part when `import deepspeed` works
and can build its op.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

WARM_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
               "MALLOC_TOP_PAD_": "67108864", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
SHARD = 1 << 20
HYPER = {"lr": 1e-4, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--params", default="100M", help="parameters, with M if need be")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def engine_candidate(params: int, threads: int) -> Callable[[], None]:
    import numpy as np
    from engine import Optimizer, Shard

    pattern = (np.arange(SHARD, dtype=np.uint32) * 2654435761 % 997).astype(np.float32) * 1e-6
    gradient = (pattern.view(np.uint32) >> 16).astype(np.uint16)
    work = []
    for first in range(0, params, SHARD):
        shard = Shard(Optimizer("adamw"), np.zeros(SHARD, np.float32), "bfloat16", first)
        work.append((shard, [gradient.copy(), gradient.copy()]))
    parts = [work[i::threads] for i in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def update(part: list) -> None:  # the engine runs outside the interpreter's lock
        for shard, gradients in part:
            shard.update(gradients, "bfloat16", scale=0.5, **HYPER)

    return lambda: list(pool.map(update, parts))


def torch_gradients(params: int) -> list:
    import torch
    return [torch.full((params,), 1e-4, dtype=torch.bfloat16) for _ in range(2)]


def torch_candidate(params: int, kind: str) -> Callable[[], None]:
    import torch
    weights = torch.nn.Parameter(torch.zeros(params))
    weights.grad = torch.zeros(params)
    served = torch.zeros(params, dtype=torch.bfloat16)
    gradients = torch_gradients(params)
    betas = (HYPER["beta1"], HYPER["beta2"])
    if kind == "torch":
        optimizer = torch.optim.AdamW([weights], lr=HYPER["lr"], betas=betas, eps=HYPER["eps"],
                                      weight_decay=HYPER["weight_decay"], foreach=True)
    else:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam([weights], lr=HYPER["lr"], betas=betas, eps=HYPER["eps"],
                                     weight_decay=HYPER["weight_decay"], adamw_mode=True)

    def step() -> None:
        weights.grad.copy_(gradients[0])
        weights.grad.add_(gradients[1]).mul_(0.5)
        optimizer.step()
        served.copy_(weights.detach())

    return step


def candidates(params: int, threads: int) -> dict[str, Callable[[], None]]:
    import torch
    torch.set_num_threads(threads)
    found = {"luwu": engine_candidate(params, threads),
             f"torch.optim.AdamW {torch.__version__}": torch_candidate(params, "torch")}
    try:
        import deepspeed
        found[f"DeepSpeed CPUAdam {deepspeed.__version__}"] = torch_candidate(params, "deepspeed")
    except Exception as error:  # whatever its build says
        print(f"DeepSpeed does not take part: {error}", file=sys.stderr)
    return found


def main() -> int:
    options = arguments()
    if any(os.environ.get(key) != value for key, value in WARM_MALLOC.items()):
        environment = {**os.environ, **WARM_MALLOC, "OMP_NUM_THREADS": str(options.threads)}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    source = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(source / "tests" / "exactness" / "engine")]
    params = int(float(options.params.rstrip("M")) * (1e6 if options.params.endswith("M") else 1))
    params = max(SHARD, params // SHARD * SHARD)
    running = candidates(params, options.threads)
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for round_number in range(options.rounds + 1):
        for name, step in running.items():
            begin = time.monotonic()
            step()
            if round_number > 0:
                seconds[name].append(time.monotonic() - begin)
    report = {"params": params, "threads": options.threads, "rounds": options.rounds,
              "candidates": {}}
    for name, times in seconds.items():
        ratio = statistics.median(t / ours for t, ours in zip(times, seconds["luwu"]))
        report["candidates"][name] = {
            "ns_per_parameter": statistics.median(times) / params * 1e9, "time_to_luwu": ratio}
        print(f"{name:36} {statistics.median(times) / params * 1e9:7.3f} ns/parameter"
              f"  {ratio:6.2f} x luwu")
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
