"""Trains two steps, or two more of a job that is there. Run in the clean root, where only the
packages are: python3 train_two_steps.py ENDPOINT JOB shm|tcp

Every weight, gradient and learning rate is a small multiple of a power of two, so that the result
is known exactly.
"""

import sys

import numpy as np

import luwu

LR = 0.5
STEPS = 2

endpoint, name, way = sys.argv[1:]
job = luwu.JobSpec(
    name=name, world_size=1, layers=(luwu.layer_of("layer", [("weight", (64, 2))]),),
    optimizer=luwu.SGD(lr=LR), served=luwu.DType.FLOAT32, gradients=luwu.DType.FLOAT32,
    durable_every=2, durability="synced")
start = np.arange(128, dtype=np.float32)
gradient = np.linspace(-16, 15.75, 128).astype(np.float32)
assert job.layers[0].elements == start.size and gradient[1] - gradient[0] == 0.25
with luwu.Session(endpoint, job, 0) as session:
    assert session.info().shm_nodes == (1 if way == "shm" else 0)
    if not session.info().loaded:
        session.load(0, start)
        session.finish_load()
    first = session.current_step
    for step in range(first, first + STEPS):
        session.begin_step(step)
        fetched = session.fetch(0, step)
        assert np.array_equal(fetched, start - LR * step * gradient), (step, fetched)
        session.push(0, gradient)
        assert session.commit(step).applied
    end = first + STEPS
    assert np.array_equal(session.fetch(0, end), start - LR * end * gradient)
print(f"trained to step {end}")
