"""A training that survives its daemons: one worker, a job with durable points, and numpy as the
oracle of every version. Every fetch is compared, so that no step can be lost, doubled or mixed
without being noticed."""

import time

import luwu
import numpy as np

LR = 0.5
ELEMENTS = 3000
LAYERS = 2
CALL_S = 20.0
PATIENCE_S = 90.0


def job_of(name: str, **options) -> luwu.JobSpec:
    """Two layers of a dozen shards each, fp32, SGD."""
    layers = tuple(
        luwu.LayerSpec(
            f"layer{i}", ELEMENTS, (luwu.TensorSpec(f"w{i}", (ELEMENTS,), 0),)
        )
        for i in range(LAYERS)
    )
    chosen = {"durable_every": 1, "durability": "logged", **options}
    return luwu.JobSpec(
        name,
        1,
        layers,
        optimizer=luwu.SGD(lr=LR),
        served=luwu.DType.FLOAT32,
        gradients=luwu.DType.FLOAT32,
        shard_elements=256,
        slots_per_worker=8,
        overflow_bytes=1 << 20,
        **chosen,
    )


def gradient_of(step: int, layer: int) -> np.ndarray:
    random = np.random.default_rng(1000 * step + layer)
    return random.integers(-64, 64, ELEMENTS).astype(np.float32) / 64


class Oracle:
    """The weights of every step."""

    def __init__(self) -> None:
        first = [np.arange(ELEMENTS, dtype=np.float32) / 8 + i for i in range(LAYERS)]
        self._versions = [first]

    def weights(self, step: int, layer: int) -> np.ndarray:
        while len(self._versions) <= step:
            number = len(self._versions) - 1
            self._versions.append(
                [
                    values - np.float32(LR) * gradient_of(number, i)
                    for i, values in enumerate(self._versions[-1])
                ]
            )
        return self._versions[step][layer]


class Trainer:
    """One worker. `durable_step`: the least step that a rollback may go to, as commits said."""

    def __init__(self, endpoints: str, job: luwu.JobSpec, oracle: Oracle) -> None:
        self.oracle = oracle
        self.job = job
        self.session = luwu.Session(endpoints, job, 0, node_timeout_s=3.0, timeout_s=CALL_S)
        self.rollbacks = []
        self.durable_step = 0
        if not self.session.info().loaded:
            for layer in range(LAYERS):
                self.session.load(layer, oracle.weights(0, layer))
            self.session.finish_load()
        self.step = self.session.current_step

    def train_step(self) -> luwu.CommitResult:
        step = self.step
        self.session.begin_step(step, timeout_s=CALL_S)
        for layer in range(LAYERS):
            got = self.session.fetch(layer, step, timeout_s=CALL_S)
            np.testing.assert_array_equal(got, self.oracle.weights(step, layer), f"step {step}")
            self.session.push(layer, gradient_of(step, layer), timeout_s=CALL_S)
        result = self.session.commit(step, timeout_s=CALL_S)
        assert result.applied
        self.step = step + 1
        if result.durability != "memory":
            self.durable_step = self.step
        return result

    def resume(self) -> int:
        step = self.session.reopen(PATIENCE_S)
        self.session.wait_loaded(PATIENCE_S)
        assert step >= self.durable_step, f"acknowledged step {self.durable_step} is lost: {step}"
        assert step <= self.step + 1
        self.rollbacks.append(step)
        self.step = step
        return step

    def train_until(self, step: int, timeout_s: float = 2 * PATIENCE_S) -> None:
        """Trains until `step` is the next one, coming back from whatever the daemons do."""
        end = time.monotonic() + timeout_s
        while self.step < step:
            assert time.monotonic() < end, f"step {self.step} is not over in time"
            try:
                self.train_step()
            except luwu.SessionLostError:
                self.resume()
            except luwu.RetryableError:
                # A repeated step: what has been pushed is recognised by the daemons.
                self.resume()

    def check(self) -> None:
        """Masters are those of an undisturbed run, to the bit."""
        for layer in range(LAYERS):
            np.testing.assert_array_equal(
                self.session.read(layer), self.oracle.weights(self.step, layer)
            )

    def close(self) -> None:
        self.session.close()
