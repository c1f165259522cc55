"""Optimizers: torch's argument names and defaults (Lion: those of its paper).

One dataclass serves twice. In ``JobSpec.optimizer`` it fixes what the daemons keep: the kind, and
the fields ``amsgrad``, ``initial_accumulator_value`` and the keyword-only ones. In
``Session.begin_step`` its other fields are the hyper-parameters of one group in one step; what the
job has fixed is not looked at again there.

Keyword-only fields of all optimizers:

``state_precision``: of everything the optimizer keeps but the master weights. "float32";
"bfloat16", half the bytes, rounded stochastically; "blockwise8", about a quarter, 8 bits relative
to the largest value of each block of 256, rounded stochastically. The last two are not exact.
"fp32" and "bf16" are understood too.
``master_format``: "float32", or "split": the same fp32 value kept as the served bfloat16 copy and
the 16 bits that it lacks, 2 bytes a parameter less. Needs bfloat16 on the wire.
``rounding_seed``: of stochastic rounding; equal seeds give equal bits on any number of daemons.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Union

from luwu.errors import ArgumentError

STATE_PRECISIONS = {"float32": 1, "bfloat16": 2, "blockwise8": 3}
MASTER_FORMATS = {"float32": 1, "split": 2}
_SHORT = {"fp32": "float32", "bf16": "bfloat16"}
_FIXED = frozenset({"amsgrad", "initial_accumulator_value", "state_precision", "master_format",
                    "rounding_seed"})


def _check_value(what: str, name: str, value: Any) -> None:
    """As torch: no hyper-parameter is negative or NaN, and betas are below 1."""
    if isinstance(value, bool):
        return
    if name == "betas":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ArgumentError(f"{what} is {value!r}; it must be two numbers")
        for beta in value:
            _check_value(what, "beta", beta)
            if float(beta) >= 1:
                raise ArgumentError(f"{what} is {value!r}; each must be below 1")
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} is {value!r}; it must be a number") from None
    if isinstance(value, str):
        raise ArgumentError(f"{what} is {value!r}; it must be a number, not text")
    negative = number < 0 and name != "dampening"  # torch takes any dampening
    if math.isnan(number) or math.isinf(number) or negative:
        raise ArgumentError(f"{what} is {value!r}; it must be a finite number, not negative")


@dataclass(frozen=True)
class _Storage:
    """What every optimizer has in common; see the module text."""

    state_precision: str = dataclasses.field(default="float32", kw_only=True)
    master_format: str = dataclasses.field(default="float32", kw_only=True)
    rounding_seed: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        for field, known in (("state_precision", STATE_PRECISIONS),
                             ("master_format", MASTER_FORMATS)):
            value = getattr(self, field)
            value = _SHORT.get(value, value)
            if value not in known:
                raise ValueError(f"{field} {value!r} is not one of {', '.join(known)}")
            object.__setattr__(self, field, value)
        for name, value in self.step_values().items():
            _check_value(f"{type(self).__name__}: {name}", name, value)

    def step_values(self) -> dict[str, Any]:
        """The hyper-parameters that travel with each step, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                if field.name not in _FIXED}


@dataclass(frozen=True)
class AdamW(_Storage):
    """``torch.optim.AdamW``: decoupled weight decay."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False


@dataclass(frozen=True)
class Adam(_Storage):
    """``torch.optim.Adam``: weight decay is added to the gradient (L2)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False


@dataclass(frozen=True)
class SGD(_Storage):
    """``torch.optim.SGD``. With momentum 0 no momentum buffer is kept."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True)
class Lion(_Storage):
    """Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): the sign of an
    interpolation of momentum and gradient, with decoupled weight decay. The paper advises a 3 to 10
    times smaller ``lr`` and larger ``weight_decay`` than for AdamW."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adagrad(_Storage):
    """``torch.optim.Adagrad``."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


HyperParameters = Union[AdamW, Adam, SGD, Lion, Adagrad]
KINDS: dict[type, int] = {AdamW: 1, SGD: 2, Adam: 3, Lion: 4, Adagrad: 5}


@dataclass(frozen=True)
class LossScaling:
    """Dynamic loss scale, kept by the job, in the manner and with the defaults of
    ``torch.cuda.amp.GradScaler``: gradients are divided by the scale; a step with gradients that
    are not finite is skipped and the scale multiplied by ``backoff_factor``; after
    ``growth_interval`` applied steps in a row it is multiplied by ``growth_factor`` (0: never)."""

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
