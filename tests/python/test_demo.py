"""The demo as a whole, with very few steps: its numbers, its restart, that it leaves nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LUWUD

_DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo_train" / "main.py"
_KEYS = {"final_loss", "reference_final_loss", "trainer_state_bytes", "daemon_state_bytes", "steps",
         "tokens_per_s", "killed_and_restarted", "bit_identical_after_restart"}


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, str(_DEMO), "--rows", "1", "--bin", str(LUWUD.parent),
            "--out", str(out), "--json", str(out / "table.json"), *options]


def run_demo(out: Path, *options: str) -> dict[str, Any]:
    result = subprocess.run(command(out, *options), capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "loss on held-out text" in result.stdout
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((out / "table.json").read_text())


def test_a_trainer_is_killed_and_the_result_is_the_same(tmp_path: Path) -> None:
    values = run_demo(tmp_path, "--steps", "9")
    assert values.keys() >= _KEYS
    assert values["steps"] == 9
    assert values["killed_and_restarted"] is True
    assert values["bit_identical_after_restart"] is True
    assert values["trainer_state_bytes"] == 0 < values["trainer_peak_bytes"]
    # fp32 masters and two moments of more than 5M parameters, over both daemons
    assert sum(values["daemon_state_bytes"].values()) >= 12 * 5_000_000
    assert min(values["daemon_state_bytes"].values()) > 0
    assert values["final_loss"] == pytest.approx(values["reference_final_loss"], rel=0.01)


def test_one_worker_one_daemon_fp32_without_the_kill(tmp_path: Path) -> None:
    values = run_demo(tmp_path, "--steps", "4", "--workers", "1", "--daemons", "1",
                      "--wire", "fp32", "--no-kill")
    assert values["killed_and_restarted"] is False
    assert values["bit_identical_after_restart"] is None
    assert values["final_loss"] == pytest.approx(values["reference_final_loss"], rel=1e-4)


def test_another_optimizer_with_small_state_and_clipping_survives_the_kill_too(
        tmp_path: Path) -> None:
    values = run_demo(tmp_path, "--steps", "9", "--optimizer", "lion", "--state-precision",
                      "blockwise8", "--master-format", "split", "--clip-norm", "1")
    assert values["bit_identical_after_restart"] is True
    assert (values["optimizer"], values["state_precision"], values["master_format"]) == (
        "lion", "blockwise8", "split")
    assert (values["update_mode"], values["clip_norm"]) == ("deferred", 1)
    assert values["clipped_steps"] > 0 and values["grad_norm"] > 0
    # 2 bytes of master and one of momentum (and its scale) for each parameter
    parameters = sum(values["daemon_state_bytes"].values()) / (3 + 1 / 64)
    assert 5_000_000 < parameters < 5_500_000
    assert values["final_loss"] == pytest.approx(values["reference_final_loss"], rel=0.01)


@pytest.mark.parametrize("options, words", [
    (["--clip-norm", "1", "--update-mode", "immediate"], "--update-mode deferred"),
    (["--master-format", "split", "--wire", "fp32"], "needs --wire bf16"),
    (["--clip-norm", "-1"], "must be positive"),
    (["--optimizer", "lamb"], "invalid choice"),
])
def test_options_that_do_not_go_together_are_named_at_once(
        tmp_path: Path, options: list[str], words: str) -> None:
    result = subprocess.run(command(tmp_path, *options), capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and words in result.stderr


def test_the_loss_curves_of_the_state_precisions_stand_next_to_each_other(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[1] / "bench" / "convergence.py"
    out = tmp_path / "curves.json"
    result = subprocess.run(
        [sys.executable, str(script), "--steps", "6", "--rows", "1", "--bin", str(LUWUD.parent),
         "--out", str(tmp_path), "--json", str(out)], capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    losses = json.loads(out.read_text())["losses"]
    assert list(losses) == ["float32", "bfloat16", "blockwise8"]
    assert losses["bfloat16"] != losses["float32"] != losses["blockwise8"]
    for name in losses:
        assert losses[name] == pytest.approx(losses["float32"], rel=0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupting_it_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(command(tmp_path, "--steps", "500"), stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    try:
        for line in demo.stdout:
            if "step 1/" in line:
                break
        children = [int(pid) for task in os.listdir(f"/proc/{demo.pid}/task") for pid in Path(
            f"/proc/{demo.pid}/task/{task}/children").read_text().split()]
        assert len(children) == 4  # two daemons, two trainers
        watches = [os.pidfd_open(pid) for pid in children]
        demo.send_signal(number)
        killed = number == signal.SIGKILL  # then the kernel ends them, a moment later
        assert demo.wait(60) == (-number if killed else 130)
        for watch in watches:
            assert select.select([watch], [], [], 30 if killed else 0)[0], "it outlives the demo"
            os.close(watch)
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
