"""The packages as lintian sees them: no error, no warning."""

import os
import subprocess
from pathlib import Path

PACKAGES = Path(os.environ["LUWU_PACKAGES"])
NAMES = ["libluwu-dev", "libluwu1", "luwuctl", "luwud", "python3-luwu"]


def test_lintian_is_content():
    packages = sorted(PACKAGES.glob("*.deb"))
    assert [package.name.split("_")[0] for package in packages] == NAMES, "scripts/package"
    done = subprocess.run(
        ["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", *packages],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
