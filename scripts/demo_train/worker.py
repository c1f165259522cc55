"""One trainer process: a rank of the job. Tells its progress as lines of JSON on stdout.

Started by the demo; resumes at the daemons' current step when it is started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import torch  # noqa: E402

import luwu  # noqa: E402
import luwu.torch as lt  # noqa: E402
from corpus import Corpus  # noqa: E402
from gpt import Block, loss_of, make_gpt  # noqa: E402
from plan import ROWS_HELD_OUT, SGD_MOMENTUM, Plan, add_plan_options, plan_of  # noqa: E402

_HOLD_S = 60


def tell(event: str, **values: Any) -> None:
    """One line for the demo."""
    print(json.dumps({"event": event, **values}), flush=True)


_KINDS = {"adamw": luwu.AdamW, "adam": luwu.Adam, "sgd": luwu.SGD, "lion": luwu.Lion,
          "adagrad": luwu.Adagrad}


def optimizer_of(plan: Plan) -> luwu.HyperParameters:
    momentum = {"momentum": SGD_MOMENTUM} if plan.optimizer == "sgd" else {}
    return _KINDS[plan.optimizer](
        lr=plan.lr, **momentum, state_precision=plan.state_precision,
        master_format=plan.master_format, rounding_seed=plan.seed)


def state_hash(optimizer: lt.OffloadedOptimizer, moments: int) -> str:
    """SHA-256 over all masters and moments."""
    digest = hashlib.sha256()
    for tensors in (optimizer.full_state_dict(),
                    *(optimizer.moments(number + 1) for number in range(moments))):
        for name in sorted(tensors):
            digest.update(name.encode())
            digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


class Peak:
    """Largest number of model-state bytes in this process, sampled in every block's forward."""

    def __init__(self, model: torch.nn.Module, optimizer: lt.OffloadedOptimizer) -> None:
        self.bytes = 0
        self._optimizer = optimizer
        for module in model.modules():
            if isinstance(module, Block):
                module.norm2.register_forward_pre_hook(self._sample)

    def _sample(self, *_: Any) -> None:
        self.bytes = max(self.bytes, self._optimizer.resident_bytes())


def hold_in_backward(model: torch.nn.Module, step: int) -> None:
    """Waits, in the middle of a backward pass, for the SIGKILL that the demo sends."""

    def on_gradient(_gradient: torch.Tensor) -> None:
        tell("mid_step", step=step)
        time.sleep(_HOLD_S)

    def on_output(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(on_gradient)

    blocks = [module for module in model.modules() if isinstance(module, Block)]
    blocks[len(blocks) // 2].register_forward_hook(on_output)


def train(plan: Plan, options: argparse.Namespace) -> None:
    """Trains from the daemons' current step to the end of the plan."""
    torch.set_num_threads(1)
    corpus = Corpus(plan.text, plan.workers, plan.shape().context, plan.seed)
    model = make_gpt(plan.shape(), plan.seed)
    optimizer = lt.offload(
        model, units=Block, endpoints=options.endpoints, job=options.job, rank=options.rank,
        world_size=plan.workers, optimizer=optimizer_of(plan),
        param_groups=lt.decay_groups(model, plan.weight_decay), wire=plan.wire,
        update_mode=plan.update_mode, clip_grad_norm=plan.clip_norm or None,
        settings=lt.Settings(restart_count=options.restart_count, transport="auto",
                             durable_every=plan.durable_every))
    first = optimizer.current_step  # not 0 after a restart
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: plan.lr_factor(done + first))
    peak = Peak(model, optimizer)
    tell("start", step=optimizer.current_step, shm_nodes=optimizer.session.info().shm_nodes,
         nodes=optimizer.session.info().nodes)
    while optimizer.current_step < plan.stop_after:
        step = optimizer.current_step
        if step == options.hold_at:
            hold_in_backward(model, step)
        try:
            loss = loss_of(model, corpus.batch(step, options.rank, plan.rows))
            loss.backward()
            outcome = optimizer.step()
        except luwu.SessionLostError as error:
            # A daemon was lost. The job goes back to its last durable point, and so do we: batches
            # and learning rate depend on the step alone.
            step = optimizer.resume()
            schedule.last_epoch = step - first - 1
            schedule.step()
            tell("resume", step=step, why=str(error))
            continue
        optimizer.zero_grad()
        schedule.step()
        info = optimizer.session.info()
        tell("step", step=step, loss=loss.item(), applied=outcome.applied,
             culprit=outcome.culprit, grad_norm=outcome.grad_norm,
             clipped=outcome.clip_factor < 1,
             fetched=info.fetched_bytes, pushed=info.pushed_bytes,
             resident=optimizer.resident_bytes(), peak=peak.bytes)
        if step == options.hash_at and options.rank == 0:
            moments = 2 if plan.optimizer in ("adamw", "adam") else 1
            tell("state", step=step, sha256=state_hash(optimizer, moments))
    if options.rank == 0:
        with torch.no_grad():
            held_out = loss_of(model, corpus.held_out(ROWS_HELD_OUT)).item()
        tell("final", held_out=held_out, status=optimizer.session.status())
    optimizer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    add_plan_options(parser)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--restart-count", type=int, default=0)
    parser.add_argument("--hold-at", type=int, default=-1)
    parser.add_argument("--hash-at", type=int, default=-1)
    options = parser.parse_args()
    train(plan_of(options), options)


if __name__ == "__main__":
    main()
