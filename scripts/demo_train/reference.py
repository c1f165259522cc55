"""The same model trained by the optimizer's original in torch in one process with the same batches.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "exactness"))

import torch  # noqa: E402

from corpus import Corpus  # noqa: E402
from gpt import loss_of, make_gpt  # noqa: E402
from lion import Lion  # noqa: E402
from plan import ROWS_HELD_OUT, SGD_MOMENTUM, Plan, add_plan_options, plan_of  # noqa: E402

_KINDS: dict[str, Any] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam,
                          "sgd": torch.optim.SGD, "lion": Lion, "adagrad": torch.optim.Adagrad}


def train(plan: Plan) -> None:
    """One line of JSON per step; the batches of all workers form one batch."""
    corpus = Corpus(plan.text, plan.workers, plan.shape().context, plan.seed)
    model = make_gpt(plan.shape(), plan.seed)
    parameters = list(model.parameters())
    momentum = {"momentum": SGD_MOMENTUM} if plan.optimizer == "sgd" else {}
    optimizer = _KINDS[plan.optimizer]([
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=plan.lr,
        **momentum)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.lr_factor)
    for step in range(plan.stop_after):
        rows = [corpus.batch(step, rank, plan.rows) for rank in range(plan.workers)]
        loss = loss_of(model, torch.cat(rows))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if plan.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, plan.clip_norm)
        optimizer.step()
        schedule.step()
        print(json.dumps({"event": "step", "step": step, "loss": loss.item()}), flush=True)
    with torch.no_grad():
        held_out = loss_of(model, corpus.held_out(ROWS_HELD_OUT)).item()
    state = sum(value.numel() * value.element_size() for entry in optimizer.state.values()
                for value in entry.values() if isinstance(value, torch.Tensor))
    weights = sum(p.numel() * p.element_size() for p in parameters)
    print(json.dumps({"event": "final", "held_out": held_out, "state_bytes": 2 * weights + state}),
          flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    add_plan_options(parser)
    train(plan_of(parser.parse_args()))


if __name__ == "__main__":
    main()
