"""The unit file: what systemd itself says about it."""

import pathlib
import re
import subprocess

import pytest
from programs import LUWUD

UNITS = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "systemd"
EXPOSURE_MAX = 2.5


@pytest.fixture
def unit(tmp_path):
    """As it is installed, with the program where it is and without the manual, which is not."""
    text = (UNITS / "luwud.service").read_text()
    text = text.replace("/usr/bin/luwud", str(LUWUD)).replace("Documentation=man:luwud(8)\n", "")
    path = tmp_path / "luwud.service"
    path.write_text(text)
    return path


def test_verifies_without_a_word(unit):
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_leaves_little_exposed(unit):
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    exposure = float(re.search(r"exposure level for luwud.service: ([\d.]+)", said)[1])
    assert exposure <= EXPOSURE_MAX
