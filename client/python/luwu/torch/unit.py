"""State of one unit in one worker."""

from __future__ import annotations

from typing import Any

from luwu.torch.plan import UnitPlan
from luwu.torch.storage import FlatStorage, flat_storages
from luwu.torch.transfer import Transfer


class Unit:
    """A unit at run time. ``index`` is its layer in the job. Used only by the thread that holds the
    module's ``Gate``."""

    def __init__(self, plan: UnitPlan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.device = plan.tensors[0].parameter.device
        self.stream: Any = None  # that its memory belongs to, on a GPU
        self.trainable = plan.trainable
        self.storages: list[FlatStorage] = flat_storages(plan)
        self.fetching: Transfer | None = None
        self.stray: Transfer | None = None  # given up (Ctrl-C, time out), may still write
        self.resident = False
        self.version = -1  # of the weights in memory or being fetched
        self.running = 0  # forward calls on the stack
        self.held = False  # must stay resident: in backward, or the root of a training pass
        self.pushing: Transfer | None = None
        self.accumulate_nodes: list[Any] = []  # keeps the gradient hooks alive
        self.leaf_hooks: list[Any] = []  # of this pass, on tensors that may outlive it
        self.closed = False  # in this step
        self.contributions = 0  # pushed in this step
        self.reset_pass()

    def reset_pass(self) -> None:
        """Forgets the forward and backward pass that just ended."""
        self.calls = 0  # forward calls of the pass, recomputation not counted
        self.ready: set[int] = set()  # trainable tensors whose gradient has arrived
        self.inputs_awaited = 0  # inputs whose gradient is still being computed
        self.held = False
        for hook in self.leaf_hooks:
            hook.remove()
        self.leaf_hooks.clear()

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_root(self) -> bool:
        return self.plan.is_root

    @property
    def busy(self) -> bool:
        """True while its weights may be in use."""
        return self.running > 0 or self.held

    @property
    def gradients_complete(self) -> bool:
        return len(self.ready) == len(self.trainable)

    @property
    def backward_done(self) -> bool:
        """True when no node of this pass can need the weights any more."""
        return self.gradients_complete and self.inputs_awaited <= 0

    @property
    def nbytes(self) -> int:
        """Bytes of weights held at this moment."""
        return sum(storage.nbytes for storage in self.storages)
