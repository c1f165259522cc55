"""Error classes agree with luwu.h; buffers and the predictor, which need no library."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import luwu
from luwu import _ffi, buffers, errors
from luwu.torch.predictor import EVAL, TRAIN, Predictor

_SOURCE = Path(__file__).resolve().parents[2]
_HEADER = (_SOURCE / "client" / "include" / "luwu" / "luwu.h").read_text()


def test_every_status_of_the_header_has_a_class_in_its_range() -> None:
    codes = {name: int(code) for name, code in re.findall(r"LUWU_(E_\w+) = (-\d+)", _HEADER)}
    assert len(codes) >= 20
    bases = {1: luwu.ArgumentError, 2: luwu.StateError, 3: luwu.RetryableError,
             4: luwu.SessionLostError, 5: luwu.CorruptError, 6: luwu.InternalError}
    for name, code in codes.items():
        error = errors.make_error(code, "text")
        assert isinstance(error, bases[-code // 100]), name
        assert error.code == code and str(error) == "text"
    assert isinstance(errors.make_error(-399, ""), luwu.RetryableError)  # of a later library
    assert isinstance(errors.make_error(-9999, ""), luwu.InternalError)


def test_standard_classes_are_kept() -> None:
    assert issubclass(luwu.ArgumentError, ValueError)
    assert issubclass(luwu.DeadlineError, TimeoutError)
    assert issubclass(luwu.LibraryError, ImportError)


def test_every_function_of_the_header_is_bound() -> None:
    declared = set(re.findall(r"LUWU_API [^;(]*?\b(luwu_\w+)\(", _HEADER))
    assert declared == set(_ffi._FUNCTIONS) | set(_ffi._TEXT_FUNCTIONS)


@pytest.mark.parametrize("struct, name", [
    (_ffi.CTensorSpec, "tensor_spec"), (_ffi.CLayerSpec, "layer_spec"), (_ffi.CJobSpec, "job_spec"),
    (_ffi.CHyper, "hyper"), (_ffi.COpenOptions, "open_options"), (_ffi.CSegment, "segment"),
    (_ffi.CSessionInfo, "session_info"), (_ffi.CCommitResult, "commit_result"),
    (_ffi.CPiece, "view_piece"), (_ffi.CPiece, "slot_piece"),
])
def test_structs_have_the_fields_of_the_header_in_order(struct: type, name: str) -> None:
    body = re.search(r"typedef struct luwu_%s \{(.*?)\} luwu_%s;" % (name, name), _HEADER, re.S)
    assert body is not None
    text = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S)
    fields = re.findall(r"(\w+)(?:\[\d+\])?;", text)
    assert [field[0] for field in struct._fields_] == fields
    widths = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "double": 8}
    for line, (_, kind) in zip(re.findall(r"([^;]+);", text), struct._fields_):
        plain = re.match(r"\s*(?:const )?(\w+) \w+$", line.strip())
        if plain and plain.group(1) in widths:
            assert _ffi.ctypes.sizeof(kind) == widths[plain.group(1)], line


def test_numpy_and_dlpack_buffers_are_described() -> None:
    torch = pytest.importorskip("torch")
    array = np.zeros((3, 4), np.float16)
    assert buffers.memory_of(array, True) == buffers.Memory(
        array.ctypes.data, luwu.DType.FLOAT16, 12, array)
    tensor = torch.zeros(5, 7, dtype=torch.bfloat16)[2:]
    memory = buffers.memory_of(tensor, True)
    assert (memory.address, memory.dtype, memory.count) == (
        tensor.data_ptr(), luwu.DType.BFLOAT16, 21)
    with pytest.raises(luwu.ArgumentError, match="contiguous"):
        buffers.memory_of(torch.zeros(4, 4).t(), True)
    with pytest.raises(luwu.UnsupportedError):
        buffers.memory_of(torch.zeros(4, dtype=torch.int64), True)


def test_the_predictor_repeats_the_last_pass() -> None:
    predictor = Predictor()
    for visit in (3, 1, 2):
        assert predictor.upcoming(TRAIN, 1) == []
        assert predictor.visit(TRAIN, visit)
    predictor.begin(TRAIN)
    assert predictor.upcoming(TRAIN, 2) == [3, 1] and predictor.upcoming(EVAL, 1) == []
    assert predictor.visit(TRAIN, 3) and predictor.upcoming(TRAIN, 5) == [1, 2]
    assert not predictor.visit(TRAIN, 2)  # 1 was left out: found again after 2
    assert predictor.upcoming(TRAIN, 1) == []
    assert (predictor.hits, predictor.misses) == (1, 1)


def test_the_predictor_survives_unknown_turns_and_stays_bounded() -> None:
    predictor = Predictor()
    for _ in range(200_000):
        predictor.visit(TRAIN, 0)
    predictor.begin(TRAIN)
    assert len(predictor.upcoming(TRAIN, 1 << 20)) <= 1 << 16
    assert not predictor.visit(TRAIN, 5)
    assert predictor.upcoming(TRAIN, 1) == [0]
