"""The library loads next to torch, numpy and grpcio in any order, and finds itself."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).resolve().parents[2] / "client" / "python"
_OTHERS = [name for name in ("torch", "numpy", "grpc") if importlib.util.find_spec(name)]
_USE = {
    "luwu": "import luwu; luwu.library_version()",
    "torch": "import torch; torch.ones(64, 64) @ torch.ones(64, 64)",
    "numpy": "import numpy; numpy.ones((64, 64)) @ numpy.ones((64, 64))",
    "grpc": "import grpc; grpc.insecure_channel('127.0.0.1:1').close()",
}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(_PACKAGE), **environment})


@pytest.mark.parametrize("order", list(itertools.permutations(["luwu", *_OTHERS])), ids=",".join)
def test_every_import_order_works(order: tuple[str, ...]) -> None:
    code = "\n".join([_USE[name] for name in order] + [_USE[name] for name in order])
    result = run_python(code + "\nprint('end')")
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "end", "")


def test_importing_luwu_loads_neither_torch_nor_the_library() -> None:
    result = run_python(
        "import luwu, sys\n"
        "assert 'torch' not in sys.modules\n"
        "assert not any('libluwu' in line for line in open('/proc/self/maps'))")
    assert result.returncode == 0, result.stderr


def test_settings_and_loss_scaling_are_in_both_modules() -> None:
    result = run_python(
        "import luwu, sys\n"
        "found = luwu.Settings(), luwu.LossScaling()\n"
        "assert 'torch' not in sys.modules\n"
        "import luwu.torch\n"
        "assert luwu.torch.Settings is luwu.Settings\n"
        "assert luwu.torch.LossScaling is luwu.LossScaling\n"
        "assert {'Settings', 'LossScaling'} <= {*luwu.__all__} & {*luwu.torch.__all__}")
    assert result.returncode == 0, result.stderr


def test_a_missing_library_says_where_it_was_looked_for() -> None:
    result = run_python(
        "import luwu\n"
        "try: luwu.library_version()\n"
        "except luwu.LibraryError as error: print(error)", LUWU_LIBRARY="/nowhere/libluwu.so.1")
    assert "/nowhere/libluwu.so.1" in result.stdout and "LUWU_LIBRARY" in result.stdout


def test_another_library_is_refused() -> None:
    result = run_python(
        "import luwu\n"
        "try: luwu.library_version()\n"
        "except luwu.LibraryError as error: print(error)", LUWU_LIBRARY="libm.so.6")
    assert "libm.so.6 is not a LuWu library" in result.stdout


def test_the_library_ends_quietly_with_the_interpreter() -> None:
    result = run_python(
        "import logging, luwu\n"
        "luwu.set_log_sink(logging.getLogger('luwu'))\n"
        "job = luwu.JobSpec('j', 1, (luwu.layer_of('l', [('a', (1,))]),))\n"
        "try: luwu.Session('127.0.0.1:1', job, 0, timeout_s=0.5)\n"
        "except luwu.LuwuError: pass")
    assert (result.returncode, result.stderr) == (0, "")
