"""Files under deploy/ that other programs read: their syntax by tools, and what they say against
each other and against luwud."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
LUWUD = Path(os.environ["LUWU_KEEP"]) / "bin" / "luwud"
LINT = """{extends: default, rules: {line-length: {max: 100}, document-start: disable,
           comments-indentation: disable}}"""
DOCUMENTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "luwud.yaml").read_text()))
BY_KIND = {document["kind"]: document for document in DOCUMENTS}
POD = BY_KIND["DaemonSet"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
TEMPLATE = BY_KIND["ConfigMap"]["data"]["luwud.toml"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_yamllint_is_content():
    assert run("yamllint", "--strict", "-d", LINT, DEPLOY / "kubernetes") == ""


def test_shellcheck_is_content():
    scripts = [*DEPLOY.glob("slurm/*"), *DEPLOY.glob("debian/*/p[or]*")]
    assert len(scripts) >= 9
    assert run("shellcheck", *scripts) == ""


@pytest.fixture(scope="module")
def effective(tmp_path_factory):
    """What the configuration comes to on the first node; luwud refuses unknown keys."""
    path = tmp_path_factory.mktemp("config") / "luwud.toml"
    path.write_text(TEMPLATE.replace("@NODE@", "node-a"))
    return run(LUWUD, "--config", path, "--check-config")


def test_probes_ask_the_control_port(effective):
    assert 'control = "10.0.0.1:7070"' in effective and 'data = "10.0.0.1:7071"' in effective
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"control": 7070, "data": 7071}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["grpc"] == {"port": ports["control"]}, probe


def test_folders_of_the_configuration_are_the_hosts(effective):
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert set(mounts.values()) < set(volumes)
    assert 'path = "/var/lib/luwu"' in effective and 'shm = "/run/luwu/' in effective
    for folder in ("/var/lib/luwu", "/run/luwu"):
        assert volumes[mounts[folder]]["hostPath"]["path"] == folder


def test_the_init_container_names_the_node(tmp_path):
    """Its shell line, with the folders put elsewhere."""
    init = POD["initContainers"][0]
    assert {m["mountPath"] for m in init["volumeMounts"]} == {"/template", "/etc/luwu"}
    (tmp_path / "luwud.toml").write_text(TEMPLATE)
    line = init["args"][0].replace("/template", str(tmp_path)).replace("/etc/luwu/luwud.toml",
                                                                       str(tmp_path / "out"))
    variable = init["env"][0]["name"]
    subprocess.run(init["command"] + [line], env={variable: "node-b", "PATH": "/usr/bin:/bin"},
                   check=True)
    assert (tmp_path / "out").read_text() == TEMPLATE.replace("@NODE@", "node-b")


def test_selectors_and_namespaces_fit():
    spec = BY_KIND["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    namespace = BY_KIND["Namespace"]["metadata"]["name"]
    for kind in ("ConfigMap", "DaemonSet"):
        assert BY_KIND[kind]["metadata"]["namespace"] == namespace


def test_extended_resources_are_not_overcommitted():
    """Kubernetes refuses a request of such a resource that differs from its limit."""
    resources = CONTAINER["resources"]
    assert resources["requests"]["rdma/hca"] == resources["limits"]["rdma/hca"]
    assert CONTAINER["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
