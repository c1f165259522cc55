"""Prolog, epilog and example job of deploy/slurm, run as Slurm runs them: without PATH."""

import os
import subprocess

import luwu
import pytest
from cluster import free_ports
from programs import LUWUCTL, SOURCE, luwuctl
from training import small_job

SLURM = SOURCE / "deploy" / "slurm"


@pytest.fixture
def slurm(tmp_path):
    """Runs prolog or epilog on the node whose daemon is at `endpoint`."""

    def run(script, endpoint, **variables):
        settings = tmp_path / "slurm.conf"
        settings.write_text(f"LUWUCTL={LUWUCTL}\nLUWU_ENDPOINT={endpoint}\nLUWU_WAIT_S=1\n")
        environment = {"LUWU_SLURM_CONF": str(settings), "SLURM_JOB_ID": "42",
                       "SLURM_JOB_CONSTRAINTS": "luwu", **variables}
        return subprocess.run(
            [SLURM / script], env=environment, capture_output=True, text=True, timeout=60)

    return run


def nobody():
    return f"127.0.0.1:{free_ports(1)[0]}"


def jobs(endpoint):
    return {job["name"] for job in luwuctl(endpoint, "jobs")["nodes"][0]["jobs"]}


@pytest.mark.parametrize("constraints", ["luwu", "gpu&luwu", "luwu,gpu"])
def test_prolog_wants_the_daemon_of_this_node(slurm, start_cluster, constraints):
    endpoint = start_cluster(nodes=1).endpoints
    assert slurm("prolog", endpoint, SLURM_JOB_CONSTRAINTS=constraints).returncode == 0
    absent = nobody()
    done = slurm("prolog", absent, SLURM_JOB_CONSTRAINTS=constraints)
    assert done.returncode == 1
    assert f"no LuWu daemon serves at {absent}" in done.stderr


def test_prolog_does_not_mind_another_nodes_daemon(slurm, start_cluster):
    cluster = start_cluster(nodes=2)
    here, there = cluster.endpoints.split(",")
    cluster.kill(1)
    assert slurm("prolog", here).returncode == 0
    assert slurm("prolog", there).returncode == 1
    # The same daemons asked for by name at one address.
    assert slurm("prolog", here, LUWU_NODE="node0").returncode == 0
    assert slurm("prolog", here, LUWU_NODE="node1").returncode == 1


@pytest.mark.parametrize("constraints", ["", "gpu", "luwu2", "noluwu"])
def test_other_jobs_need_no_daemon(slurm, constraints):
    for script in ("prolog", "epilog"):
        done = slurm(script, nobody(), SLURM_JOB_CONSTRAINTS=constraints)
        assert (done.returncode, done.stderr) == (0, "")


def test_epilog_frees_the_job_of_its_number_only(slurm, start_cluster):
    endpoint = start_cluster(nodes=1).endpoints
    for name in ("slurm-42", "slurm-421", "model"):
        luwu.Session(endpoint, small_job(name), 0).close()
    assert slurm("epilog", endpoint).returncode == 0
    assert jobs(endpoint) == {"slurm-421", "model"}
    assert slurm("epilog", endpoint).returncode == 0  # nothing to free


def test_epilog_leaves_a_job_with_workers(slurm, start_cluster):
    endpoint = start_cluster(nodes=1).endpoints
    with luwu.Session(endpoint, small_job("slurm-42"), 0):
        assert slurm("epilog", endpoint).returncode == 0
        assert jobs(endpoint) == {"slurm-42"}


def test_epilog_never_drains_a_node(slurm):
    assert slurm("epilog", nobody()).returncode == 0


def test_the_example_starts_one_trainer_for_each_task(tmp_path):
    """With a program in the place of srun that starts two tasks, as Slurm sets their variables."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/bash\nshift\nfor i in 0 1; do SLURM_PROCID=$i "$@" || exit; done\n')
    srun.chmod(0o755)
    train = tmp_path / "train.py"
    train.write_text("import os, sys\nprint(*[os.environ[name] for name in "
                     '("RANK", "WORLD_SIZE", "LUWU_JOB")], *sys.argv[1:])\n')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42",
                   "SLURM_NTASKS": "2", "LUWU_ENDPOINT": "127.0.0.1:7070"}
    done = subprocess.run(["bash", SLURM / "job.sbatch", train, "--steps", "3"], env=environment,
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 2 slurm-42 --steps 3\n1 2 slurm-42 --steps 3\n", done.stderr
