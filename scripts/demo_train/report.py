"""The closing table, its JSON form, and the picture of the loss curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plan import Plan
from progress import human_bytes
from run import Result

_LAST_STEPS = 10  # the final loss is their mean: a single batch is too noisy to compare


def final_loss(losses: list[float]) -> float:
    """Mean training loss of the last steps."""
    last = losses[-_LAST_STEPS:]
    return sum(last) / len(last)


def daemon_state_bytes(status: dict[str, Any], job: str) -> dict[str, int]:
    """Bytes of masters and moments of the job by node, out of the status snapshot."""
    return {node["name"]: sum(int(each["state_bytes"]) for each in node["status"]["jobs"]
                              if each["name"] == job)
            for node in status["nodes"]}


def summary(plan: Plan, job: str, main: Result, reference: Result,
            identical: bool | None) -> dict[str, Any]:
    """The closing table as JSON. Losses are nats per byte; ``bit_identical_after_restart`` is null
    when nothing was killed."""
    return {
        "final_loss": final_loss(main.losses),
        "reference_final_loss": final_loss(reference.losses),
        "held_out_loss": main.held_out,
        "reference_held_out_loss": reference.held_out,
        "trainer_state_bytes": main.state_bytes,
        "trainer_peak_bytes": main.peak_bytes,
        "reference_state_bytes": reference.state_bytes,
        "daemon_state_bytes": daemon_state_bytes(main.status, job),
        "steps": len(main.losses),
        "skipped_steps": main.skipped_steps,
        "clipped_steps": main.clipped_steps,
        "grad_norm": main.grad_norm,
        "optimizer": plan.optimizer,
        "state_precision": plan.state_precision,
        "master_format": plan.master_format,
        "update_mode": plan.resolved_update_mode,
        "clip_norm": plan.clip_norm or None,
        "tokens_per_s": main.tokens_per_s,
        "training_seconds": main.seconds,
        "workers": plan.workers,
        "wire": plan.wire,
        "killed_and_restarted": main.killed,
        "bit_identical_after_restart": identical,
    }


def table(values: dict[str, Any], compared: str, after_crash: str) -> str:
    """For people."""
    nodes = ", ".join(f"{name} {human_bytes(count)}"
                      for name, count in values["daemon_state_bytes"].items())
    limit = "none" if values["clip_norm"] is None else f"{values['clip_norm']:g}"
    clipped = f", reached in {values['clipped_steps']} steps" if values["clip_norm"] else ""
    rows = [
        ("", "LuWu", "plain torch, one process"),
        ("optimizer", values["optimizer"], values["optimizer"]),
        ("state, masters", f"{values['state_precision']}, {values['master_format']}",
         "float32, float32"),
        ("updates", values["update_mode"], "after backward"),
        ("limit of the gradient norm", limit + clipped, limit),
        ("training loss, last steps", f"{values['final_loss']:.4f}",
         f"{values['reference_final_loss']:.4f}"),
        ("loss on held-out text", f"{values['held_out_loss']:.4f}",
         f"{values['reference_held_out_loss']:.4f}"),
        ("model state in each trainer, between steps",
         human_bytes(values["trainer_state_bytes"]), human_bytes(values["reference_state_bytes"])),
        ("model state in each trainer, at most", human_bytes(values["trainer_peak_bytes"]),
         human_bytes(values["reference_state_bytes"])),
        ("masters and moments in the daemons", nodes, "-"),
        ("steps", str(values["steps"]), str(values["steps"])),
        ("tokens per second", f"{values['tokens_per_s']:,.0f}", ""),
        ("killed and restarted", "yes" if values["killed_and_restarted"] else "no", ""),
        ("same bits as without the kill", compared, ""),
        ("same losses when a daemon is killed", after_crash, ""),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
             for row in rows]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def save_json(values: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n")


def save_curves(main: Result, reference: Result, kill_at: int | None, path: Path) -> None:
    """Draws both loss curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(reference.losses, color="0.6", linewidth=3, label="plain torch, one process")
    axes.plot(main.losses, color="tab:blue", linewidth=1, label="LuWu, all state in the daemons")
    if main.killed and kill_at is not None:
        axes.axvline(kill_at, color="tab:red", linestyle=":", linewidth=1,
                     label="one trainer killed and restarted")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (nats per byte)")
    axes.set_title("A GPT learns the King James Bible")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
