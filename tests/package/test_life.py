"""The life of the packages in a clean root: install, start, train, upgrade, remove, purge.

systemd does not run there; the daemon is started as its unit would, as the user luwu.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clean_root import PACKAGES, CleanRoot, run

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "system"))

from cluster import free_ports  # noqa: E402

CONFIG = "/etc/luwu/luwud.toml"
ENABLED = "/etc/systemd/system/multi-user.target.wants/luwud.service"
NAMES = ["libluwu-dev", "libluwu1", "luwuctl", "luwud", "python3-luwu"]
WAIT_S = 60


@pytest.fixture
def root():
    made = CleanRoot()
    yield made
    made.close()


class Daemon:
    """luwud as the user luwu, with the installed configuration."""

    def __init__(self, root: CleanRoot) -> None:
        ready, written = os.pipe()
        self._process = subprocess.Popen(
            ["chroot", "--userspec=luwu:luwu", str(root.path), "/usr/bin/luwud", "--config", CONFIG,
             "--ready-fd", str(written)], pass_fds=[written])
        os.close(written)
        with os.fdopen(ready) as pipe:
            line = pipe.readline()
        assert line, f"luwud ended with {self._process.wait(WAIT_S)}"
        self.endpoint = json.loads(line)["control"]

    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(WAIT_S) == 0


def version_of(packages: list[Path]) -> str:
    return run("dpkg-deb", "-f", packages[0], "Version").strip()


def newer_packages(packages: list[Path], folder: Path) -> list[Path]:
    """The same with a higher version, and another configuration file."""
    former = version_of(packages)
    newer = former + "+next"
    made = []
    for package in packages:
        tree = folder / package.stem
        run("dpkg-deb", "-R", package, tree)
        control = tree / "DEBIAN" / "control"
        control.write_text(re.sub(rf"(?<![\d.]){re.escape(former)}(?=\)|$)", newer,
                                  control.read_text(), flags=re.M))
        config = tree / CONFIG.lstrip("/")
        if config.exists():
            config.write_text(config.read_text() + "# The next version says this.\n")
            sums = tree / "DEBIAN" / "md5sums"
            fresh = hashlib.md5(config.read_bytes()).hexdigest()
            sums.write_text(re.sub(r"^\w+(?=  etc/luwu)", fresh, sums.read_text(), flags=re.M))
        made.append(folder / package.name.replace(former, newer))
        run("dpkg-deb", "--root-owner-group", "-b", tree, made[-1])
    return made


def edit_configuration(root: CleanRoot) -> str:
    """As an operator would: ports of its own."""
    path = root.path / CONFIG.lstrip("/")
    text = path.read_text()
    for standard, port in zip((7070, 7071), free_ports(2)):
        text = text.replace(str(standard), str(port))
    path.write_text(text)
    return text


def train(root: CleanRoot, daemon: Daemon, job: str, way: str) -> str:
    shutil.copy(HERE / "train_two_steps.py", root.path / "tmp")
    user = [] if way == "shm" else ["setpriv", "--reuid=nobody", "--clear-groups"]
    return root.run(*user, "python3", "/tmp/train_two_steps.py", daemon.endpoint, job, way)


def installed(root: CleanRoot) -> dict[str, str]:
    listed = root.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n")
    lines = [line.split() for line in listed.splitlines()]
    return {name: version for status, name, version in lines if status == "ii" and name in NAMES}


def check_fresh(root: CleanRoot) -> None:
    """What an installation has made, and what it has left alone."""
    assert root.run("dpkg", "--verify", *NAMES) == ""
    assert root.run("stat", "-c", "%U %a", "/var/lib/luwu", "/run/luwu", CONFIG).split("\n") == [
        "luwu 700", "luwu 755", "root 644", ""]
    assert not root.has(ENABLED)
    assert root.run("luwud", "--config", CONFIG, "--check-config")
    for page in ("man8/luwud.8", "man1/luwuctl.1", "man5/luwud.toml.5"):
        assert root.has(f"/usr/share/man/{page}.gz")
    root.run("bash", "-c", "source /usr/share/bash-completion/completions/luwuctl; "
             "complete -p luwuctl")


def test_install_train_upgrade_remove_purge(root: CleanRoot, tmp_path: Path) -> None:
    packages = sorted(PACKAGES.glob("*.deb"))
    assert len(packages) == len(NAMES), "scripts/package"
    former = version_of(packages)
    said = root.install(packages)
    assert installed(root) == dict.fromkeys(NAMES, former)
    assert "restart luwud" not in said
    check_fresh(root)

    root.run("systemctl", "enable", "luwud")
    assert root.has(ENABLED)
    config = edit_configuration(root)
    daemon = Daemon(root)
    assert train(root, daemon, "by-shm", "shm") == "trained to step 2\n"
    assert train(root, daemon, "by-tcp", "tcp") == "trained to step 2\n"

    # The daemon is left alone, and so is the configuration that someone has changed.
    said = root.install(newer_packages(packages, tmp_path))
    assert installed(root) == dict.fromkeys(NAMES, former + "+next")
    assert "restart luwud when its jobs may pause: systemctl restart luwud" in said
    assert (root.path / CONFIG.lstrip("/")).read_text() == config
    assert root.has(CONFIG + ".dpkg-dist") and root.has(ENABLED)
    assert daemon.runs()
    assert train(root, daemon, "by-shm", "shm") == "trained to step 4\n"
    daemon.stop()
    daemon = Daemon(root)  # the new one goes on with the jobs of the old one
    assert train(root, daemon, "by-shm", "shm") == "trained to step 6\n"
    status = json.loads(root.run("luwuctl", "-e", daemon.endpoint, "-o", "json", "jobs"))
    assert {job["name"] for job in status["nodes"][0]["jobs"]} == {"by-shm", "by-tcp"}
    daemon.stop()

    root.apt("remove", *NAMES)
    assert installed(root) == {}
    assert not root.has("/usr/bin/luwud") and not root.has("/usr/lib/python3/dist-packages/luwu")
    assert (root.path / CONFIG.lstrip("/")).read_text() == config
    assert any((root.path / "var/lib/luwu").iterdir())

    assert "/var/lib/luwu is kept" in root.apt("purge", "luwud")
    assert not root.has("/etc/luwu") and not root.has(ENABLED)
    assert any((root.path / "var/lib/luwu").iterdir())

    root.install(packages)
    assert any((root.path / "var/lib/luwu").iterdir())
    root.apt("purge", *NAMES, LUWU_PURGE_DATA="yes")
    assert not root.has("/var/lib/luwu")

    root.install(packages)
    assert root.has("/var/lib/luwu")
    assert "is kept" not in root.apt("purge", *NAMES)  # nothing was in it
    assert not root.has("/var/lib/luwu")
