"""luwu.torch goes on by itself: a daemon is killed in the middle of a training, `resume()` joins
the job at its durable point, and the losses are those of an undisturbed run."""

import luwu
import luwu.torch as lt
import pytest
import torch

STEPS = 12


def make_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(*[torch.nn.Linear(24, 24) for _ in range(4)])


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(step))


class Program:
    """What a user's program does, with batches by step."""

    def __init__(self, endpoints: str, job: str, **settings) -> None:
        self.model = make_model()
        self.optimizer = lt.offload(
            self.model, units=torch.nn.Linear, endpoints=endpoints, job=job, wire="fp32",
            optimizer=luwu.AdamW(lr=1e-2), settings=lt.Settings(
                shard_elements=64, overflow_bytes=1 << 20, **settings))
        self.losses = {}
        self.resumed = []

    def train(self, steps: int, disturb=lambda step, where: None) -> None:
        while self.optimizer.current_step < steps:
            step = self.optimizer.current_step
            try:
                disturb(step, "forward")
                loss = self.model(batch(step)).square().mean()
                disturb(step, "backward")
                loss.backward()
                # Before step(): its answer may be lost with the daemon, and the step yet be kept.
                assert self.losses.setdefault(step, loss.item()) == loss.item()
                disturb(step, "step")
                self.optimizer.step()
            except luwu.SessionLostError:
                self.resumed.append(self.optimizer.resume())


@pytest.fixture
def undisturbed(start_cluster):
    program = Program(start_cluster(nodes=1).endpoints, "quiet")
    program.train(STEPS)
    return program.losses, program.optimizer.full_state_dict()


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
@pytest.mark.parametrize("durable_every", [1, 3])
def test_killed_daemon_costs_no_bits(start_cluster, undisturbed, where, durable_every):
    cluster = start_cluster(nodes=2, storage=True)
    program = Program(
        cluster.endpoints, "resumed", durable_every=durable_every, durability="logged")
    kills = {4: [1], 8: [0], 10: [0, 1]}

    def disturb(step: int, at: str) -> None:
        if at != where or step not in kills:
            return
        victims = kills.pop(step)
        for node in victims:
            cluster.kill(node)
        for node in victims:
            cluster.start(node)

    program.train(STEPS, disturb)
    losses, weights = undisturbed
    assert kills == {} and len(program.resumed) >= 3
    assert all(step % durable_every == 0 for step in program.resumed), program.resumed
    assert program.losses == losses
    for name, values in program.optimizer.full_state_dict().items():
        assert torch.equal(values, weights[name]), name
    program.optimizer.close()


def test_job_that_was_not_kept_is_told(start_cluster):
    cluster = start_cluster(nodes=1)
    program = Program(cluster.endpoints, "gone")
    program.train(2)
    cluster.kill(0)
    cluster.start(0)
    with pytest.raises(luwu.JobFailedError, match="not kept"):
        program.train(3)
