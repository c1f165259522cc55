"""What a job is: its tensors, layers, optimizer and options, as plain dataclasses.

Two workers of one job must pass equal specs; the daemons refuse a different one and name the first
difference. Sizes and offsets count elements, never bytes.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Sequence, Union

from luwu.optimizers import SGD, AdamW, HyperParameters, LossScaling

UPDATE_MODES = {"auto": 0, "immediate": 1, "deferred": 2, "speculative": 3}
DURABILITIES = {"memory": 1, "logged": 2, "synced": 3}
CLIP_SCOPES = {"none": 1, "global": 2, "group": 3, "layer": 4}


class DType(enum.IntEnum):
    """Element types on the wire and in buffers (numbers of ``luwu_dtype``)."""

    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT32 else 2

    @classmethod
    def parse(cls, name: Union[str, "DType"]) -> "DType":
        """A ``DType`` from "fp32", "bf16", "fp16" or the full names."""
        if isinstance(name, DType):
            return name
        known = {
            "fp32": cls.FLOAT32, "float32": cls.FLOAT32,
            "bf16": cls.BFLOAT16, "bfloat16": cls.BFLOAT16,
            "fp16": cls.FLOAT16, "float16": cls.FLOAT16,
        }
        if name not in known:
            raise ValueError(f"dtype {name!r} is not one of {', '.join(known)}")
        return known[name]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor inside a layer. ``offset``: elements from the start of the layer."""

    name: str
    shape: tuple[int, ...]
    offset: int
    group: int = 0
    trainable: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerSpec:
    """The unit of fetch and push: ``elements`` flat values with tensors by ascending offset."""

    name: str
    elements: int
    tensors: tuple[TensorSpec, ...]

    @property
    def trainable(self) -> bool:
        """False for a frozen layer, which is never pushed."""
        return any(tensor.trainable for tensor in self.tensors)


@dataclass(frozen=True)
class JobSpec:
    """A training run. ``None`` leaves a size to the library's default.

    ``served`` and ``gradients`` are the dtypes on the wire (``DType`` or its names); buffers of
    another dtype are converted.
    ``optimizer`` fixes the kind of optimizer and how its state is kept (``luwu.optimizers``), and
    whether SGD keeps momentum; the values that a step uses travel with ``Session.begin_step``.

    ``update_mode``: when gradients are applied. "immediate": each shard as soon as its last
    gradient is in, under the rest of the backward pass. "deferred": when norm and finiteness of the
    whole step are known; what clipping and loss scaling need. "speculative": at once, and again
    when the decision calls for it, with the same result as "deferred" and room for both. "auto":
    "deferred" with clipping or loss scaling, else "immediate".
    ``held``: dtype of the gradient sums that wait for the decision, float32 or (half the bytes,
    rounded once) bfloat16.
    ``clip_scope``: which gradients share one norm, limited to ``max_norm`` of ``begin_step``:
    "none", "global" (as ``torch.nn.utils.clip_grad_norm_``), "group" or "layer".
    ``keep_undo_state``: a second generation of the state, so that steps can be skipped as a whole;
    ``None`` keeps it where the update mode needs it.
    ``accumulates``: memory for a float32 sum of each shard, so that several micro-steps can be
    pushed before layers are closed; without it only as far as slots and ``overflow_bytes`` go.
    ``durable_every``: every so many steps weights and state are written to the daemons' disks, so
    that the job can come back to that step (a durable point) after a crash; 0: never.
    ``durability``: what the commit before a point waits for: "memory" (points are made in the
    background), "logged" (survives the daemons' processes) or "synced" (survives power loss).
    ``memory_bytes``: most memory that the job takes on each node, with the rest of its state on
    disk; 0: what the node has left.
    """

    name: str
    world_size: int
    layers: tuple[LayerSpec, ...]
    optimizer: HyperParameters = field(default_factory=AdamW)
    groups: int = 1
    served: DType = DType.BFLOAT16
    gradients: DType = DType.BFLOAT16
    reduction: str = "mean"
    on_non_finite: str = "skip"
    keep_undo_state: bool | None = None
    shard_elements: int | None = None
    slots_per_worker: int | None = None
    overflow_bytes: int | None = None
    update_mode: str = "auto"
    held: DType = DType.FLOAT32
    clip_scope: str = "none"
    loss_scaling: LossScaling | None = None
    accumulates: bool = False
    durable_every: int = 0
    durability: str = "memory"
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        for name, known in (("update_mode", UPDATE_MODES), ("clip_scope", CLIP_SCOPES),
                            ("durability", DURABILITIES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} {getattr(self, name)!r} is not one of {', '.join(known)}")
        for name in ("served", "gradients", "held"):
            object.__setattr__(self, name, DType.parse(getattr(self, name)))
        if self.reduction not in ("sum", "mean"):
            raise ValueError(f"reduction {self.reduction!r} is not 'sum' or 'mean'")
        if self.on_non_finite not in ("skip", "fail"):
            raise ValueError(f"on_non_finite {self.on_non_finite!r} is not 'skip' or 'fail'")

    @property
    def resolved_update_mode(self) -> str:
        """``update_mode`` with "auto" decided."""
        if self.update_mode != "auto":
            return self.update_mode
        late = self.clip_scope != "none" or self.loss_scaling is not None
        return "deferred" if late else "immediate"

    @property
    def sgd_momentum(self) -> bool:
        """True when SGD keeps a momentum buffer."""
        return isinstance(self.optimizer, SGD) and self.optimizer.momentum != 0

    def layer_index(self, layer: int | str) -> int:
        """Index of a layer given by index or name; ``KeyError`` names an unknown one."""
        if isinstance(layer, str):
            for index, spec in enumerate(self.layers):
                if spec.name == layer:
                    return index
            raise KeyError(f"job {self.name!r} has no layer {layer!r}")
        return layer


def layer_of(name: str, shapes: Sequence[tuple[str, tuple[int, ...]]],
             align: int = 64) -> LayerSpec:
    """A layer with trainable tensors one after the other, each aligned to ``align`` elements."""
    tensors, offset = [], 0
    for tensor_name, shape in shapes:
        tensors.append(TensorSpec(tensor_name, tuple(shape), offset))
        offset += -(-math.prod(shape) // align) * align
    return LayerSpec(name, offset, tuple(tensors))
