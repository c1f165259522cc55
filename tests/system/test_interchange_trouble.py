"""Imports and exports that are killed, meet another one, run out of space, or read files that
change: weights of two sources never pass for one, and nothing is left in the way."""

import contextlib
import os
import subprocess
import time

import luwu
import numpy as np
import pytest
from interchange_files import (
    assert_same,
    luwuctl,
    make_job,
    make_weights,
    masters,
    open_session,
    read_file,
    train,
    write_file,
)
from programs import LUWUCTL, TIMEOUT_S

ELEMENTS = 1 << 20  # of a tensor: one piece of an import


def wait_until(condition):
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextlib.contextmanager
def begun(cluster, *arguments):
    """luwuctl in the background, killed at the end."""
    process = subprocess.Popen(
        [LUWUCTL, "-e", cluster.endpoints, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def succeeds(cluster, *arguments) -> bool:
    command = [LUWUCTL, "-e", cluster.endpoints, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S).returncode == 0


def has_open(daemon, path) -> bool:
    for entry in os.listdir(f"/proc/{daemon.pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{daemon.pid}/fd/{entry}") == str(path):
                return True
    return False


def large_job(name):
    layers = tuple(
        luwu.LayerSpec(f"layer{i}", ELEMENTS, (luwu.TensorSpec(f"w{i}", (ELEMENTS,), 0),))
        for i in range(4)
    )
    return luwu.JobSpec(
        name, 1, layers, optimizer=luwu.SGD(lr=0.1), served=luwu.DType.FLOAT32, slots_per_worker=4
    )


def write_large(path, value):
    write_file(path, {f"w{i}": np.full(ELEMENTS, value, np.float32) for i in range(4)})


def values_of(session):
    return {value for layer in range(4) for value in np.unique(session.read(layer)).tolist()}


@pytest.fixture
def slow_readers(start_cluster, monkeypatch):
    """Daemons that take their time for each piece of an import."""
    monkeypatch.setenv("LUWU_FAILPOINTS", "interchange.read=delay(500)")
    return start_cluster(nodes=2, memory="256MiB")


def test_a_killed_overwrite_leaves_no_masters_with_moments_of_another_step(
    start_cluster, tmp_path, monkeypatch
):
    # Two renames of the first export, two of the second one.
    monkeypatch.setenv("LUWU_FAILPOINTS", "interchange.rename=kill@4")
    running = start_cluster(nodes=2)
    job, folder = make_job(), tmp_path / "out"
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(running, job) as session:
        luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
        train(session, job, range(3), 1)
        luwuctl(running, "export", job.name, folder, "--optimizer-state")
        train(session, job, range(3, 8), 2)
        expected = masters(session, job)
        again = ("export", job.name, folder, "--optimizer-state", "--overwrite")
        luwuctl(running, *again, ok=False)
    assert read_file(folder / "model.safetensors")[1]["luwu.step"] == "8"
    other = start_cluster(nodes=1)
    with open_session(other, job) as session:
        refused = luwuctl(other, "import", job.name, folder, "--optimizer-state", ok=False)
        assert "optimizer state: not found" in refused.stderr or "neither" in refused.stderr
        luwuctl(other, "import", job.name, folder)
        assert_same(masters(session, job), expected)


def test_a_refused_export_into_another_nodes_data_directory_leaves_the_node_startable(
    start_cluster, tmp_path
):
    running = start_cluster(nodes=2, storage=True)
    job = make_job()
    write_file(tmp_path / "in.safetensors", make_weights())
    extents = running.data_dir(1) / "extents"
    with open_session(running, job):
        luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
        for folder in (extents / "sub", running.data_dir(0) / "extents" / "sub"):
            refused = luwuctl(running, "export", job.name, folder, ok=False)
            assert "data directory of node" in refused.stderr
            assert not folder.exists()
    (extents / "somebody-elses").mkdir()
    running.kill(1)
    running.start(1)
    assert (extents / "somebody-elses").exists()


def test_of_two_imports_into_one_job_at_once_the_later_one_is_refused(slow_readers, tmp_path):
    job = large_job("both")
    files = [tmp_path / f"{value}.safetensors" for value in (1, 2)]
    for value, file in enumerate(files, 1):
        write_large(file, value)
    with open_session(slow_readers, job) as session:
        with begun(slow_readers, "import", job.name, files[0]) as first:
            wait_until(lambda: has_open(slow_readers.daemons[1], files[0]))
            second = luwuctl(slow_readers, "import", job.name, files[1], ok=False)
            assert "another import into job 'both' is in progress" in second.stderr
            assert "already exists" in second.stderr
            assert first.wait(TIMEOUT_S) == 0
        assert values_of(session) == {1}
        luwuctl(slow_readers, "import", job.name, files[1])
        assert values_of(session) == {2}


def test_a_killed_import_holds_no_other_one_back(slow_readers, tmp_path):
    job = large_job("killed")
    files = [tmp_path / f"{value}.safetensors" for value in (1, 2)]
    for value, file in enumerate(files, 1):
        write_large(file, value)
    with open_session(slow_readers, job) as session:
        with begun(slow_readers, "import", job.name, files[0]) as process:
            wait_until(lambda: has_open(slow_readers.daemons[1], files[0]))
            process.kill()
            process.wait()
        wait_until(lambda: succeeds(slow_readers, "import", job.name, files[1]))
        assert values_of(session) == {2}


def test_a_file_that_is_overwritten_in_place_while_it_is_imported_is_an_error(
    slow_readers, tmp_path
):
    job, file = large_job("changed"), tmp_path / "in.safetensors"
    write_large(file, 1)
    with open_session(slow_readers, job) as session:
        with begun(slow_readers, "import", job.name, file) as process:
            wait_until(lambda: has_open(slow_readers.daemons[1], file))
            with open(file, "r+b") as target:
                target.seek(-4 * ELEMENTS, os.SEEK_END)
                target.write(np.full(ELEMENTS, 2, np.float32).tobytes())
            _, text = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 1
            assert f"'{file}' was changed while it was being read" in text
        write_large(file, 3)
        luwuctl(slow_readers, "import", job.name, file)
        assert values_of(session) == {3}


def test_missing_tensors_are_zero_whatever_was_imported_before(cluster, tmp_path):
    job, weights = make_job(), make_weights()
    names = list(weights)
    half = {name: weights[name] + np.float32(1) for name in names[:3]}
    write_file(tmp_path / "whole.safetensors", weights)
    write_file(tmp_path / "half.safetensors", half)
    with open_session(cluster, job) as session:
        luwuctl(cluster, "import", job.name, tmp_path / "whole.safetensors")
        luwuctl(cluster, "import", job.name, tmp_path / "half.safetensors", "--allow-missing")
        zeros = {name: np.zeros_like(weights[name]) for name in names[3:]}
        assert_same(masters(session, job), {**half, **zeros})


def test_moments_are_fresh_after_an_import_of_state_that_was_killed(
    start_cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("LUWU_FAILPOINTS", "interchange.read=delay(50)")
    running = start_cluster(nodes=2)
    trained, job = make_job(), make_job()
    with open_session(running, trained) as session:
        session.finish_load(allow_missing=True)
        train(session, trained, range(2), 1)
        luwuctl(running, "export", trained.name, tmp_path / "trained", "--optimizer-state")
    state = tmp_path / "trained" / "optimizer.safetensors"
    with open_session(running, job):
        killed = ("import", job.name, tmp_path / "trained", "--optimizer-state")
        with begun(running, *killed) as process:
            # It is opened for its header first, for less than that.
            wait_until(
                lambda: all(
                    has_open(running.daemons[1], state) and time.sleep(0.02) is None
                    for _ in range(3)
                )
            )
            process.kill()
            process.wait()
        again = ("import", job.name, tmp_path / "trained")
        wait_until(lambda: succeeds(running, *again))
        luwuctl(running, "export", job.name, tmp_path / "out", "--optimizer-state")
    tensors, metadata = read_file(tmp_path / "out" / "optimizer.safetensors")
    assert metadata["luwu.step"] == "0"
    assert len(tensors) == 2 * len(make_weights())
    assert not any(any(raw) for _, _, raw in tensors.values())


def test_of_two_exports_into_one_folder_at_once_the_later_one_is_refused(
    start_cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("LUWU_FAILPOINTS", "persist.read=delay(500)")
    running = start_cluster(nodes=2, storage=True)
    job, folder = make_job(durable_every=1), tmp_path / "out"
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(running, job) as session:
        luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
        luwuctl(running, "checkpoint", "create", job.name, "zero")
        train(session, job, range(2), 1)
        export = ("export", job.name, folder, "--overwrite", "--checkpoint", "zero")
        with begun(running, *export) as first:
            wait_until(lambda: list(folder.glob(".luwu-export-*/model.safetensors")))
            live = ("export", job.name, folder, "--overwrite", "--optimizer-state")
            second = luwuctl(running, *live, ok=False)
            assert f"another export into '{folder}' is in progress" in second.stderr
            assert first.wait(TIMEOUT_S) == 0
        assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
        assert read_file(folder / "model.safetensors")[1]["luwu.step"] == "0"
        with begun(running, *export) as third:
            wait_until(lambda: list(folder.glob(".luwu-export-*/model.safetensors")))
            third.kill()
            third.wait()
        wait_until(lambda: succeeds(running, *live))
        files = {path.name for path in folder.iterdir()}
        assert files == {"model.safetensors", "optimizer.safetensors"}
        assert read_file(folder / "model.safetensors")[1]["luwu.step"] == "2"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "luwu-test", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("allocates", [True, False])
def test_an_export_to_a_full_file_system_ends_with_an_error_and_training_goes_on(
    start_cluster, tmp_path, monkeypatch, small_disk, allocates
):
    if not allocates:  # as file systems do that cannot set space aside: it fills in mid-write
        monkeypatch.setenv("LUWU_FAILPOINTS", "interchange.allocate=error(95)")
    running = start_cluster(nodes=2, memory="256MiB")
    job = large_job("full")
    write_large(tmp_path / "in.safetensors", 1)
    with open_session(running, job) as session:
        luwuctl(running, "import", job.name, tmp_path / "in.safetensors")
        train(session, job, [0], 1)
        for folder in (small_disk, small_disk / "new"):
            done = luwuctl(running, "export", job.name, folder, ok=False)
            assert "No space left on device" in done.stderr and str(folder) in done.stderr
            assert ("set space aside" in done.stderr) == allocates
            assert list(small_disk.iterdir()) == []
        train(session, job, [1], 1)
        luwuctl(running, "export", job.name, tmp_path / "elsewhere")
