"""The same model trained by ``torch.optim.AdamW`` in one process with the same batches."""

from __future__ import annotations

import argparse
import json

import torch

from corpus import Corpus
from gpt import loss_of, make_gpt
from plan import ROWS_HELD_OUT, Plan, add_plan_options, plan_of


def train(plan: Plan) -> None:
    """One line of JSON per step; the batches of all workers form one batch."""
    corpus = Corpus(plan.text, plan.workers, plan.shape().context, plan.seed)
    model = make_gpt(plan.shape(), plan.seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}], lr=plan.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.lr_factor)
    for step in range(plan.stop_after):
        rows = [corpus.batch(step, rank, plan.rows) for rank in range(plan.workers)]
        loss = loss_of(model, torch.cat(rows))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
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
