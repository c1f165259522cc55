"""Paths and fixtures of the system tests.

The build to test: $LUWU_BIN (the folder of luwud and luwuctl) and $LUWU_LIBRARY (libluwu.so.1); by
default the release build of this source tree.
"""

import os
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_SOURCE / "client" / "python"), str(Path(__file__).parent)]

from cluster import Cluster  # noqa: E402
from programs import LUWUD  # noqa: E402


@pytest.fixture
def cluster():
    """Two daemons of this test's own, the second without shared memory."""
    with Cluster(LUWUD, nodes=2, shm=[True, False], memory="64MiB") as running:
        yield running


@pytest.fixture
def start_cluster():
    """Starts a cluster that the test may break: `start_cluster(nodes=1, ...)`."""
    started = []

    def start(**options) -> Cluster:
        started.append(Cluster(LUWUD, **{"memory": "64MiB", **options}).__enter__())
        return started[-1]

    yield start
    for each in started:
        each.close()
