"""Specs as C structs."""

from __future__ import annotations

import ctypes

from luwu import _ffi
from luwu.errors import ArgumentError
from luwu.specs import SGD, AdamW, HyperParameters, JobSpec, LayerSpec, TensorSpec

_REDUCTIONS = {"sum": 1, "mean": 2}
_NON_FINITE = {"skip": 1, "fail": 2}


def _fits(value: int, bits: int, what: str) -> int:
    """ctypes would wrap silently; a negative or huge size must be an error instead."""
    if not 0 <= value < 1 << bits:
        raise ArgumentError(f"{what} is {value}; it must be in 0..2^{bits}-1")
    return value


def _c_tensor(tensor: TensorSpec) -> _ffi.CTensorSpec:
    what = f"tensor {tensor.name!r}"
    shape = [_fits(size, 64, f"{what}: a dimension") for size in tensor.shape]
    return _ffi.CTensorSpec(
        group=_fits(tensor.group, 32, f"{what}: group"), name=tensor.name.encode(),
        shape=(ctypes.c_uint64 * len(shape))(*shape) if shape else None, dims=len(shape),
        trainable=int(tensor.trainable), offset=_fits(tensor.offset, 64, f"{what}: offset"))


def _c_layer(layer: LayerSpec) -> _ffi.CLayerSpec:
    tensors = (_ffi.CTensorSpec * len(layer.tensors))(*[_c_tensor(t) for t in layer.tensors])
    return _ffi.CLayerSpec(
        tensor_count=len(layer.tensors), name=layer.name.encode(), tensors=tensors,
        elements=_fits(layer.elements, 64, f"layer {layer.name!r}: elements"))


def c_job(job: JobSpec) -> _ffi.CJobSpec:
    """The job as a C struct; ctypes keeps everything it points to alive with it."""
    layers = (_ffi.CLayerSpec * len(job.layers))(*[_c_layer(layer) for layer in job.layers])
    return _ffi.CJobSpec(
        world_size=_fits(job.world_size, 32, "world_size"), name=job.name.encode(), layers=layers,
        layer_count=len(job.layers), groups=_fits(job.groups, 32, "groups"),
        optimizer=1 if isinstance(job.optimizer, AdamW) else 2, sgd_momentum=int(job.sgd_momentum),
        served_dtype=int(job.served), gradient_dtype=int(job.gradients),
        reduction=_REDUCTIONS[job.reduction], on_non_finite=_NON_FINITE[job.on_non_finite],
        keep_undo_state=int(job.keep_undo_state),
        slots_per_worker=_fits(job.slots_per_worker or 0, 32, "slots_per_worker"),
        shard_elements=_fits(job.shard_elements or 0, 64, "shard_elements"),
        overflow_bytes=_ffi.DEFAULT_OVERFLOW if job.overflow_bytes is None
        else _fits(job.overflow_bytes, 64, "overflow_bytes"))


def c_hyper(values: HyperParameters) -> _ffi.CHyper:
    """Hyper-parameters of one group as a C struct."""
    if isinstance(values, AdamW):
        return _ffi.CHyper(lr=values.lr, weight_decay=values.weight_decay, beta1=values.betas[0],
                           beta2=values.betas[1], eps=values.eps)
    if isinstance(values, SGD):
        return _ffi.CHyper(lr=values.lr, weight_decay=values.weight_decay, momentum=values.momentum,
                           dampening=values.dampening, nesterov=int(values.nesterov))
    raise ArgumentError(f"{type(values).__name__} is not AdamW or SGD")
