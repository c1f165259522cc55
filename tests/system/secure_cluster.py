"""A cluster with TLS, its certificates, and programs that show them."""

import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Dict, Optional

from cluster import Cluster
from programs import LUWUCTL, LUWUD, SOURCE, TIMEOUT_S

DEV_CERTS = SOURCE / "scripts" / "dev-certs"
REFRESH_S = 1
LOCAL_GROUP = 54321


def make_certificates(folder: pathlib.Path) -> None:
    subprocess.run([DEV_CERTS, folder], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)


def access(identity: str, role: str, jobs: Optional[str] = None) -> str:
    text = f'\n[[access]]\nidentity = "spiffe://luwu/{identity}"\nrole = "{role}"\n'
    return text + ("" if jobs is None else f"jobs = {jobs}\n")


class SecureCluster(Cluster):
    """Trainers may touch jobs "team-*", everybody else all."""

    def __init__(self, trainer_limits: str = "", **options):
        self.trainer_limits = trainer_limits
        self.certificates = pathlib.Path(tempfile.mkdtemp(prefix="luwu-tls-"))
        make_certificates(self.certificates)
        super().__init__(LUWUD, **options)

    def config_text(self, index: int) -> str:
        daemon = self.certificates / "daemon.pem"
        return super().config_text(index) + (
            f'\n[tls]\ncertificate = "{daemon}"\nkey = "{daemon}"\n'
            f'ca = "{self.certificates / "ca.pem"}"\nrefresh = "{REFRESH_S}s"\n'
            + access("daemon", "daemon")
            + access("trainer", "trainer", '["team-*"]')
            + self.trainer_limits
            + self.local_text(index)
            + access("observer", "observer", '["*"]')
            + access("operator", "operator", '["*"]')
        )

    def local_socket(self, index: int) -> pathlib.Path:
        return self.certificates / f"{index}.sock"

    def local_text(self, index: int) -> str:
        """A local socket, for the user of the test and for a group that it need not be in."""
        return (
            f'\n[local]\nsocket = "{self.local_socket(index)}"\n'
            + access("", "operator", '["*"]').replace("spiffe://luwu/", f"uid:{os.geteuid()}")
            + access("", "observer", '["*"]').replace("spiffe://luwu/", f"gid:{LOCAL_GROUP}")
        )

    def identity(self, name: str) -> Dict[str, str]:
        """The environment of a program that is `name`."""
        both = str(self.certificates / f"{name}.pem")
        return {
            "LUWU_TLS_CA": str(self.certificates / "ca.pem"),
            "LUWU_TLS_CERTIFICATE": both,
            "LUWU_TLS_KEY": both,
        }

    def luwuctl(self, name: Optional[str], *arguments: object) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LUWU_TLS")}
        if name is not None:
            environment.update(self.identity(name))
        return subprocess.run(
            [str(LUWUCTL), "-e", self.nodes[0].control, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
        )

    def logs(self) -> str:
        return "".join(daemon.log() for daemon in self.daemons)

    def close(self) -> None:
        try:
            super().close()
        finally:
            shutil.rmtree(self.certificates, ignore_errors=True)
