"""Paths and fixtures of the Python tests.

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

# Read by torch when it is imported, here and in child processes; see oracle.py.
os.environ.setdefault("ATEN_CPU_CAPABILITY", "default")

_SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_SOURCE / "client" / "python"), str(_SOURCE / "tests" / "fakes"),
                str(_SOURCE / "tests" / "system")]

from cluster import Cluster  # noqa: E402

LUWUD = Path(os.environ.get("LUWU_BIN", _SOURCE / "build" / "release" / "bin")) / "luwud"
LEASE_MS = 15000  # on a busy machine a worker may be silent for seconds
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two daemons, the second without shared memory; shared by the tests of a file."""
    with Cluster(LUWUD, nodes=2, shm=[True, False], memory="1GiB", lease_ms=LEASE_MS) as running:
        yield running


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for one test, which may break it: ``start_cluster(nodes=2, ...)``."""
    started: list[Cluster] = []

    def start(**options: object) -> Cluster:
        options.setdefault("lease_ms", LEASE_MS)
        started.append(Cluster(LUWUD, **options).__enter__())  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def job_name() -> str:
    """A job name of its own for each test."""
    return f"job-{next(_numbers)}"
