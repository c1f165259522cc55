"""Specs as C structs."""

from __future__ import annotations

import ctypes
import operator

from luwu import _ffi
from luwu.errors import ArgumentError
from luwu.optimizers import (
    KINDS, MASTER_FORMATS, STATE_PRECISIONS, HyperParameters, LossScaling,
)
from luwu.specs import CLIP_SCOPES, DURABILITIES, UPDATE_MODES, JobSpec, LayerSpec, TensorSpec

_REDUCTIONS = {"sum": 1, "mean": 2}
_NON_FINITE = {"skip": 1, "fail": 2}


def fits(value: int, bits: int, what: str) -> int:
    """ctypes would wrap silently; a negative or huge size must be an error instead."""
    try:
        value = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}, not an integer") from None
    if not 0 <= value < 1 << bits:
        raise ArgumentError(f"{what} is {value}; it must be in 0..2^{bits}-1")
    return value


def text(value: str, what: str) -> bytes:
    """C would silently take what comes before a NUL for the whole."""
    if "\0" in value:
        raise ArgumentError(f"{what} {value!r} has a NUL character in it")
    return value.encode()


def optional_text(value: str | None, what: str) -> bytes | None:
    """None is NULL."""
    return None if value is None else text(value, what)


def choice(what: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        raise ArgumentError(f"{what} {value!r} is not one of {', '.join(choices)}")
    return choices[value]


def _c_tensor(tensor: TensorSpec) -> _ffi.CTensorSpec:
    what = f"tensor {tensor.name!r}"
    shape = [fits(size, 64, f"{what}: a dimension") for size in tensor.shape]
    return _ffi.CTensorSpec(
        group=fits(tensor.group, 32, f"{what}: group"), name=text(tensor.name, "tensor name"),
        shape=(ctypes.c_uint64 * len(shape))(*shape) if shape else None, dims=len(shape),
        trainable=int(tensor.trainable), offset=fits(tensor.offset, 64, f"{what}: offset"))


def _c_layer(layer: LayerSpec) -> _ffi.CLayerSpec:
    tensors = (_ffi.CTensorSpec * len(layer.tensors))(*[_c_tensor(t) for t in layer.tensors])
    return _ffi.CLayerSpec(
        tensor_count=len(layer.tensors), name=text(layer.name, "layer name"), tensors=tensors,
        elements=fits(layer.elements, 64, f"layer {layer.name!r}: elements"))


def c_job(job: JobSpec) -> _ffi.CJobSpec:
    """The job as a C struct; ctypes keeps everything it points to alive with it."""
    layers = (_ffi.CLayerSpec * len(job.layers))(*[_c_layer(layer) for layer in job.layers])
    return _ffi.CJobSpec(
        world_size=fits(job.world_size, 32, "world_size"), name=text(job.name, "job name"),
        layers=layers,
        layer_count=len(job.layers), groups=fits(job.groups, 32, "groups"),
        optimizer=_kind(job.optimizer), sgd_momentum=int(job.sgd_momentum),
        served_dtype=int(job.served), gradient_dtype=int(job.gradients),
        reduction=_REDUCTIONS[job.reduction], on_non_finite=_NON_FINITE[job.on_non_finite],
        keep_undo_state=int(job.resolved_update_mode != "deferred"
                            if job.keep_undo_state is None else job.keep_undo_state),
        slots_per_worker=fits(job.slots_per_worker or 0, 32, "slots_per_worker"),
        shard_elements=fits(job.shard_elements or 0, 64, "shard_elements"),
        overflow_bytes=_ffi.DEFAULT_OVERFLOW if job.overflow_bytes is None
        else fits(job.overflow_bytes, 64, "overflow_bytes"),
        update_mode=UPDATE_MODES[job.update_mode], held_dtype=int(job.held),
        clip_scope=CLIP_SCOPES[job.clip_scope],
        state_precision=STATE_PRECISIONS[job.optimizer.state_precision],
        master_format=MASTER_FORMATS[job.optimizer.master_format],
        amsgrad=int(getattr(job.optimizer, "amsgrad", False)),
        rounding_seed=fits(job.optimizer.rounding_seed, 64, "rounding_seed"),
        accumulates=int(job.accumulates),
        durable_every=fits(job.durable_every, 32, "durable_every"),
        durability=DURABILITIES[job.durability],
        memory_bytes=fits(job.memory_bytes, 64, "memory_bytes"),
        initial_accumulator=getattr(job.optimizer, "initial_accumulator_value", 0.0),
        **_loss_scaling(job.loss_scaling))


def _kind(optimizer: HyperParameters) -> int:
    kind = KINDS.get(type(optimizer))
    if kind is None:
        names = ", ".join(each.__name__ for each in KINDS)
        raise ArgumentError(f"{type(optimizer).__name__} is not one of {names}")
    return kind


def _loss_scaling(values: LossScaling | None) -> dict[str, float]:
    if values is None:
        return {}
    # 0 would ask the library for its default.
    for name in ("init_scale", "growth_factor", "backoff_factor"):
        if getattr(values, name) == 0:
            raise ArgumentError(f"loss_scaling: {name} is 0; it must be positive")
    interval = fits(values.growth_interval, 31, "loss_scaling: growth_interval")
    return {"loss_scale_initial": values.init_scale,
            "loss_scale_growth_factor": values.growth_factor,
            "loss_scale_backoff_factor": values.backoff_factor,
            "loss_scale_growth_interval": interval or _ffi.NEVER_GROWS}


def c_hyper(job: JobSpec, values: HyperParameters, max_norm: float) -> _ffi.CHyper:
    """Hyper-parameters of one group as a C struct."""
    if type(values) is not type(job.optimizer):
        raise ArgumentError(f"{type(values).__name__} was given for a step of job {job.name!r}, "
                            f"whose optimizer is {type(job.optimizer).__name__}")
    fields = values.step_values()
    if "betas" in fields:
        fields["beta1"], fields["beta2"] = fields.pop("betas")
    return _ffi.CHyper(max_norm=max_norm, **fields)
