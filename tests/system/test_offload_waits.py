"""`luwu.torch.offload` while daemons are still coming up: it waits, says so, and has an end."""

import logging
import threading

import luwu
import luwu.torch as lt
import pytest
import torch

WAIT_S = 60


class Told(logging.Handler):
    """What the log "luwu" says."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.event = threading.Event()

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.event.set()


@pytest.fixture
def told():
    handler = Told()
    logging.getLogger("luwu").addHandler(handler)
    yield handler
    logging.getLogger("luwu").removeHandler(handler)


def offload(endpoints, open_timeout_s):
    model = torch.nn.Linear(8, 8)
    return lt.offload(
        model, units=[], endpoints=endpoints, job="waiting", rank=0, world_size=1,
        settings=lt.Settings(open_timeout_s=open_timeout_s, durable_every=1, durability="logged",
                             overflow_bytes=1 << 20),
    )


@pytest.mark.parametrize("nodes_down", [[0, 1], [1]])
@pytest.mark.parametrize("known", [False, True])
def test_waits_for_daemons_that_come_back(start_cluster, told, nodes_down, known):
    """Also for a job that they hold (`known`), which recovers when all of them are there."""
    cluster = start_cluster(nodes=2, storage=True)
    if known:
        optimizer = offload(cluster.endpoints, WAIT_S)
        optimizer.module(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        optimizer.close()
    for node in nodes_down:
        cluster.kill(node)
    made = []
    thread = threading.Thread(
        target=lambda: made.append(offload(cluster.endpoints, WAIT_S)), daemon=True
    )
    thread.start()
    assert told.event.wait(WAIT_S)
    for node in nodes_down:
        cluster.start(node)
    thread.join(WAIT_S)
    assert made and made[0].current_step == int(known)
    assert "waiting" in told.lines[0] and cluster.nodes[nodes_down[0]].control in told.lines[0]
    made[0].close()


def test_gives_up_at_its_deadline_and_names_the_daemon(start_cluster):
    cluster = start_cluster(nodes=1)
    cluster.kill(0)
    with pytest.raises(luwu.NodeLostError, match=cluster.nodes[0].control):
        offload(cluster.endpoints, 1.0)
