"""A trainer process of the tests: trains ``models.Net`` and prints JSON lines.

Started by ``workers.Worker``. Options are one JSON object, see ``DEFAULTS``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import torch  # noqa: E402

import luwu  # noqa: E402
import luwu.torch as lt  # noqa: E402
from models import Block, batch, loss_of, make_net  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "endpoints": "", "job": "", "rank": 0, "world_size": 1, "restart_count": 0, "steps": 5,
    "transport": "auto", "worker_timeout_s": 60, "hold_at": -1, "wire": "fp32", "pause_before": -1,
    "update_mode": "auto", "clip_grad_norm": None,
}


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def hold(net: torch.nn.Module) -> None:
    """Tells when backward has reached the second block, and stays there to be killed."""

    def on_gradient(_gradient: torch.Tensor) -> None:
        tell(event="held")
        time.sleep(60)

    net.blocks[1].register_forward_hook(
        lambda _module, _inputs, output: output.register_hook(on_gradient) and None)


def train(options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    net = make_net()
    optimizer = lt.offload(
        net, units=Block, endpoints=options["endpoints"], job=options["job"], rank=options["rank"],
        world_size=options["world_size"], optimizer=luwu.AdamW(lr=1e-2), wire=options["wire"],
        update_mode=options["update_mode"], clip_grad_norm=options["clip_grad_norm"],
        settings=lt.Settings(
            overflow_bytes=1 << 20, restart_count=options["restart_count"],
            transport=options["transport"], worker_timeout_s=options["worker_timeout_s"],
            call_timeout_s=5))
    tell(event="start", step=optimizer.current_step)
    while optimizer.current_step < options["steps"]:
        step = optimizer.current_step
        if step == options["pause_before"]:
            tell(event="paused")
            sys.stdin.readline()
        if step == options["hold_at"]:
            hold(net)
        loss = loss_of(net, batch(step, options["rank"]))
        loss.backward()
        outcome = optimizer.step()
        tell(event="step", step=step, loss=loss.item(), applied=outcome.applied)
    if options["rank"] == 0:
        tell(event="weights", weights={
            name: value.flatten().tolist() for name, value in optimizer.full_state_dict().items()})
    tell(event="end")
    sys.stdin.readline()  # leaves the job when all have ended
    optimizer.close()


if __name__ == "__main__":
    try:
        train({**DEFAULTS, **json.loads(sys.argv[1])})
    except luwu.LuwuError as error:
        tell(event="error", kind=type(error).__name__, text=str(error))
        sys.exit(3)
