"""Requests as no client sends them, to every method of a daemon that serves a training job: each is
answered, the daemon lives, and the job's weights are those of numpy, to the bit.

$LUWU_MUTATED_REQUESTS and $LUWU_MUTATION_SEED: more of them, or others.
"""

import dataclasses
import json
import os
import subprocess
import threading

import luwu
import numpy as np
import pytest
from programs import SOURCE
from training import SGD, small_job

REQUESTS = int(os.environ.get("LUWU_MUTATED_REQUESTS", "3000"))
SEED = os.environ.get("LUWU_MUTATION_SEED", "20241201")
MUTATOR = os.environ.get("LUWU_MUTATOR", SOURCE / "build" / "release" / "tests" / "mutate_rpcs")
METHODS = 37  # of all services; fewer would mean that some are not reached any more
TIMEOUT_S = 200 + REQUESTS // 10


class Bystander(threading.Thread):
    """A trainer that goes on until it is told to stop, and then compares with numpy."""

    def __init__(self, endpoints: str, job: luwu.JobSpec):
        super().__init__()
        self.endpoints, self.job = endpoints, job
        self.ready, self.enough = threading.Event(), threading.Event()
        self.steps, self.error = 0, None

    def run(self):
        try:
            self.train()
        except BaseException as error:  # told by the test
            self.error = error
        finally:
            self.ready.set()

    def train(self):
        weights = [np.arange(1000, dtype=np.float32) + 1000 * i for i in range(2)]
        with luwu.Session(self.endpoints, self.job, 0, transport="tcp") as session:
            for index, values in enumerate(weights):
                session.load(index, values)
            session.finish_load()
            self.ready.set()
            while not self.enough.wait(0.01):
                session.begin_step(self.steps)
                for index in range(2):
                    got = session.fetch(index, self.steps)
                    np.testing.assert_array_equal(got, weights[index])
                    gradient = np.linspace(-1, 1, 1000, dtype=np.float32) * (1 + self.steps % 3)
                    session.push(index, gradient)
                    weights[index] = weights[index] - np.float32(SGD.lr) * gradient
                assert session.commit(self.steps).applied
                self.steps += 1
            for index in range(2):
                np.testing.assert_array_equal(session.read(index), weights[index])


def attack(node, job: str, folder) -> dict:
    done = subprocess.run(
        [MUTATOR, node.control, job, folder, str(REQUESTS), SEED],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("storage", [False, True])
def test_every_method_answers_mutated_requests(start_cluster, tmp_path, storage):
    # A long lease: whether a busy machine lets a heartbeat through in time is not the question.
    cluster = start_cluster(storage=storage, memory="256MiB", lease_ms=60_000)
    job = small_job("bystander")
    if storage:
        job = dataclasses.replace(job, durable_every=1, durability="logged")
    bystander = Bystander(cluster.endpoints, job)
    bystander.start()
    bystander.ready.wait()
    try:
        report = attack(cluster.nodes[0], "bystander", tmp_path)
    finally:
        bystander.enough.set()
        bystander.join()
    print(json.dumps(report), "steps:", bystander.steps)
    assert cluster.daemons[0].alive(), cluster.daemons[0].log_tail()
    if bystander.error is not None:
        raise bystander.error
    assert bystander.steps > 0
    assert report["methods"] >= METHODS
    assert sum(report["codes"].values()) == REQUESTS
    # "internal" is a defect of the daemon by definition, "unknown" an exception in a handler.
    assert report["noted"] == []
    assert cluster.stop() == 0
