"""A Debian root with nothing but the essential packages, to install packages into.

mmdebstrap makes it once, into an archive under $LUWU_KEEP; downloaded packages are kept there too.
Runs as root in a mount namespace of its own (tests/package/CMakeLists.txt), so mounts end with the
test. Nothing outside the folder is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SUITE = "bookworm"
KEEP = Path(os.environ["LUWU_KEEP"])
PACKAGES = Path(os.environ["LUWU_PACKAGES"])
# What an unattended installation does with a configuration file that someone has changed.
APT = ["apt-get", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confdef",
       "-o", "Dpkg::Options::=--force-confold"]


def run(*command: object, **options) -> str:
    """Standard output and error together; a failure shows them."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}"
    return done.stdout


class CleanRoot:
    def __init__(self) -> None:
        assert os.geteuid() == 0, "this test needs root"
        self.path = Path(tempfile.mkdtemp(prefix="clean-root-", dir=KEEP))
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for mounted in ("proc", "dev", "var/cache/apt/archives"):
            subprocess.run(["umount", "-l", self.path / mounted], stderr=subprocess.DEVNULL)
        left = [line for line in Path("/proc/self/mounts").read_text().splitlines()
                if str(self.path) in line]
        if not left:  # else it would delete what is mounted
            shutil.rmtree(self.path)

    def run(self, *command: object, **variables: str) -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                       "DEBIAN_FRONTEND": "noninteractive", **variables}
        return run("chroot", self.path, *command, env=environment, stdin=subprocess.DEVNULL)

    def apt(self, *arguments: object, **variables: str) -> str:
        return self.run(*APT, *arguments, **variables)

    def install(self, packages: list[Path]) -> str:
        """Files of packages, with what they depend on from the mirror."""
        folder = self.path / "srv" / "packages"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for package in packages:
            shutil.copy(package, folder)
        return self.apt("install", *(f"/srv/packages/{package.name}" for package in packages))

    def has(self, path: str) -> bool:
        return os.path.lexists(self.path / path.lstrip("/"))

    def _fill(self) -> None:
        archive = KEEP / "clean-root.tar"
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished.tar")
            run("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
                "--skip=cleanup/apt/lists", SUITE, unfinished)
            unfinished.rename(archive)
        run("tar", "-C", self.path, "--numeric-owner", "--exclude=./dev/*", "-xf", archive)
        self.path.chmod(0o755)
        downloads = KEEP / "apt-archives"
        (downloads / "partial").mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "proc", "proc", self.path / "proc")
        run("mount", "--bind", "/dev", self.path / "dev")
        run("mount", "--bind", downloads, self.path / "var/cache/apt/archives")
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        self.apt("update")
