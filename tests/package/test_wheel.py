"""The wheel: what is in it, and that it finds the library with nothing else of this source near."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = Path(os.environ["LUWU_PACKAGES"])
SOURCE = Path(__file__).resolve().parents[2] / "client" / "python"
LIBRARY = Path(os.environ["LUWU_KEEP"]) / "lib" / "libluwu.so.1"


@pytest.fixture(scope="module")
def wheel():
    found = list(PACKAGES.glob("*.whl"))
    assert len(found) == 1, "scripts/package"
    return found[0]


def test_it_is_for_every_python_3_and_has_every_module(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(SOURCE)) for path in SOURCE.glob("luwu/**/*.py")}
    assert inside == modules | {"luwu/py.typed"}


@pytest.fixture
def installed(wheel, tmp_path):
    target = tmp_path / "target"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                    "--target", target, wheel], check=True)
    return target


def version(installed, **variables):
    script = "import luwu; print(luwu.__file__); print(luwu.library_version())"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), **variables}
    return subprocess.run([sys.executable, "-c", script], cwd=installed, env=environment,
                          capture_output=True, text=True)


@pytest.mark.parametrize("variable", ["LUWU_LIBRARY", "LD_LIBRARY_PATH"])
def test_it_finds_the_library(installed, wheel, variable):
    value = LIBRARY if variable == "LUWU_LIBRARY" else LIBRARY.parent
    done = version(installed, **{variable: str(value)})
    assert done.returncode == 0, done.stderr
    module, found = done.stdout.split()
    assert module.startswith(str(installed))
    assert found == wheel.name.split("-")[1]


def test_without_the_library_it_says_what_to_do(installed):
    done = version(installed)
    if done.returncode == 0:
        pytest.skip("libluwu1 is installed on this host")
    assert "libluwu.so.1 was not found" in done.stderr and "LUWU_LIBRARY" in done.stderr
