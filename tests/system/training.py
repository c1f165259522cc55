"""A little training through the client library, with numpy as the oracle: proof that a cluster is
wholly in order."""

import itertools

import luwu
import numpy as np

_numbers = itertools.count()
SGD = luwu.SGD(lr=0.5)


def small_job(name: str = "", world_size: int = 1) -> luwu.JobSpec:
    """Two layers of a few shards, so that every node of a small cluster owns some. fp32."""
    layers = tuple(
        luwu.LayerSpec(f"layer{i}", 1000, (luwu.TensorSpec(f"w{i}", (1000,), 0),)) for i in range(2)
    )
    return luwu.JobSpec(
        name or f"small-{next(_numbers)}",
        world_size,
        layers,
        optimizer=SGD,
        served=luwu.DType.FLOAT32,
        gradients=luwu.DType.FLOAT32,
        shard_elements=256,
        slots_per_worker=4,
        overflow_bytes=1 << 20,
    )


def train_a_little(endpoints: str, transport: str, steps: int = 2) -> None:
    """Creates a job, trains it, and compares with numpy. The job stays."""
    job = small_job()
    weights = [np.arange(1000, dtype=np.float32) + 1000 * i for i in range(2)]
    gradient = np.linspace(-1, 1, 1000, dtype=np.float32)
    with luwu.Session(endpoints, job, 0, transport=transport) as session:
        for index, values in enumerate(weights):
            session.load(index, values)
        session.finish_load()
        for step in range(steps):
            session.begin_step(step)
            for index in range(2):
                np.testing.assert_array_equal(session.fetch(index, step), weights[index])
                session.push(index, gradient)
                weights[index] = weights[index] - np.float32(SGD.lr) * gradient
            assert session.commit(step).applied
        for index in range(2):
            np.testing.assert_array_equal(session.read(index), weights[index])
