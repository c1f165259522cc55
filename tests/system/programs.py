"""The programs under test, and short ways to run them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Optional

SOURCE = Path(__file__).resolve().parents[2]
_BIN = Path(os.environ.get("LUWU_BIN", SOURCE / "build" / "release" / "bin"))
LUWUD = _BIN / "luwud"
LUWUCTL = _BIN / "luwuctl"

TIMEOUT_S = 60


def luwud(*arguments: object) -> subprocess.CompletedProcess:
    """Runs luwud to its end."""
    command = [str(LUWUD), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def luwuctl(endpoint: str, command: str) -> dict:
    """The JSON of `luwuctl COMMAND` about the cluster at `endpoint`."""
    done = subprocess.run(
        [str(LUWUCTL), "-e", endpoint, "-o", "json", "--timeout-ms", "20000", command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def health(endpoint: str, node: str) -> Optional[str]:
    """"serving" and the like, as grpc.health.v1 of that node says; None when it does not answer."""
    entry = next(n for n in luwuctl(endpoint, "health")["nodes"] if n["name"] == node)
    return entry["health"]
