"""Paths and fixtures of the exactness tests.

The build to test: ``$LUWU_LIBRARY`` (libluwu.so.1) and ``$LUWU_BIN`` (the folder of luwud), default
the release build of this source tree.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

_SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_SOURCE / "client" / "python"), str(_SOURCE / "tests" / "system")]

from cluster import Cluster  # noqa: E402

LUWUD = Path(os.environ.get("LUWU_BIN", _SOURCE / "build" / "release" / "bin")) / "luwud"
_numbers = itertools.count()
_differences: list[str] = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two daemons, the second reached by tcp; shared by the tests of a file."""
    with Cluster(LUWUD, nodes=2, shm=[True, False], heartbeat_ms=2000, lease_ms=20000) as running:
        yield running


@pytest.fixture
def job_name() -> str:
    """A job name of its own for each test."""
    return f"exactness-{next(_numbers)}"


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Notes the measured difference of a test for the summary."""
    return lambda difference: _differences.append(f"{difference:8.2e}  {request.node.name}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("largest relative difference to torch")
    for line in _differences:
        terminalreporter.write_line(line)
