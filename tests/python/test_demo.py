"""The demo as a whole, with very few steps: its numbers, its restart, that it leaves nothing."""

from __future__ import annotations

import json
import os
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
        demo.send_signal(number)
        assert demo.wait(60) == 130
        assert not any(os.path.exists(f"/proc/{pid}") for pid in children)
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
