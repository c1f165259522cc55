"""What scripts/gpu-check found, as one JSON object on standard output.

Usage: check_report.py FOLDER, which holds for each step NAME.status ("exit-status seconds"),
NAME.out, NAME.err, and for tests NAME.json (GoogleTest's). Exit status 0: no test failed, of each
program some passed, and the benchmark ran.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_STEPS = ["configure", "build", "kernels", "training", "bench"]
_TESTS = ["kernels", "training"]
_TAIL = 2000  # characters of what a step that failed has said


def _cases(report: Path) -> dict[str, str]:
    """Test name to "passed", "failed" or "skipped"."""
    found = {}
    for suite in json.loads(report.read_text()).get("testsuites", []):
        for case in suite["testsuite"]:
            state = "failed" if case.get("failures") else case["result"].lower()
            found[f"{suite['name']}.{case['name']}"] = (
                "passed" if state == "completed" else state)
    return found


def _step(folder: Path, name: str) -> dict[str, Any]:
    status, seconds = (folder / f"{name}.status").read_text().split()
    step: dict[str, Any] = {"exit_status": int(status), "seconds": int(seconds)}
    if int(status) != 0:
        said = "".join((folder / f"{name}{end}").read_text(errors="replace")
                       for end in (".out", ".err") if (folder / f"{name}{end}").exists())
        step["said"] = said[-_TAIL:]
    if name in _TESTS and (folder / f"{name}.json").exists():
        step["tests"] = _cases(folder / f"{name}.json")
    if name == "bench" and int(status) == 0:
        step["measured"] = json.loads((folder / "bench.out").read_text())
    return step


def report(folder: Path) -> dict[str, Any]:
    """Everything; ``ok`` is the verdict."""
    steps = {name: _step(folder, name) for name in _STEPS if (folder / f"{name}.status").exists()}
    ran = [state for name in _TESTS for state in steps.get(name, {}).get("tests", {}).values()]
    gpu = steps.get("bench", {}).get("measured", {}).get("session", {}).get("gpu", "")
    # A held stream is for the fake GPU, everything else for real ones.
    ok = (all(step["exit_status"] == 0 for step in steps.values()) and "bench" in steps
          and bool(ran) and "failed" not in ran and not gpu.startswith("fake")
          and all("passed" in steps[name].get("tests", {}).values() for name in _TESTS))
    return {"ok": ok, "gpu": gpu, **steps}


if __name__ == "__main__":
    result = report(Path(sys.argv[1]))
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["ok"] else 1)
