"""luwuctl import and export with real daemons."""

import contextlib
import json
import signal
import subprocess
import time

import luwu
import numpy as np
import pytest
from interchange_files import (
    STATE_JOBS,
    assert_same,
    luwuctl,
    make_job,
    make_weights,
    masters,
    open_session,
    read_file,
    read_folder,
    to_bf16,
    train,
    write_file,
)
from programs import LUWUCTL, TIMEOUT_S


def test_a_single_file_becomes_the_masters(cluster, tmp_path):
    job, weights = make_job(), make_weights()
    write_file(tmp_path / "any-name.safetensors", dict(reversed(weights.items())))
    with open_session(cluster, job) as session:
        done = luwuctl(cluster, "import", job.name, tmp_path / "any-name.safetensors")
        assert "on 2 nodes" in done.stdout
        assert_same(masters(session, job), weights)
        train(session, job, [0], 3)  # it is loaded


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_sharded_checkpoint_becomes_the_masters(cluster, tmp_path, dtype):
    job, weights = make_job(), make_weights()
    names = list(weights)
    parts = {
        "model-00001-of-00002.safetensors": names[0::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, of_file in parts.items():
        write_file(tmp_path / file, {name: weights[name] for name in of_file}, dtype)
    weight_map = {name: file for file, of_file in parts.items() for name in of_file}
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
    expected = weights
    if dtype == "F16":
        expected = {name: v.astype("<f2").astype("<f4") for name, v in weights.items()}
    if dtype == "BF16":
        expected = {
            name: (to_bf16(v).astype(np.uint32) << 16).view(np.float32).reshape(v.shape)
            for name, v in weights.items()
        }
    with open_session(cluster, job) as session:
        luwuctl(cluster, "import", job.name, tmp_path)
        assert_same(masters(session, job), expected)


def test_an_export_is_what_was_imported(cluster, tmp_path):
    job, weights = make_job(), make_weights()
    write_file(tmp_path / "in.safetensors", weights)
    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        done = luwuctl(cluster, "-o", "json", "export", job.name, tmp_path / "out")
        report = json.loads(done.stdout)
        assert report["files"] == ["model.safetensors"]
        assert report["bytes"] == sum(v.nbytes for v in weights.values())
    tensors, metadata = read_file(tmp_path / "out" / "model.safetensors")
    assert metadata.pop("luwu.export")  # random
    assert metadata == {"format": "pt", "luwu.step": "0"}
    assert list(tensors) == list(weights)
    for name, values in weights.items():
        assert tensors[name] == ("F32", values.shape, values.tobytes())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]


def test_exports_of_half_precision_round(cluster, tmp_path):
    job, weights = make_job(), make_weights()
    write_file(tmp_path / "in.safetensors", weights)
    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        luwuctl(cluster, "export", job.name, tmp_path / "bf16", "--dtype", "bf16")
        luwuctl(cluster, "export", job.name, tmp_path / "fp16", "--dtype", "fp16")
    bf16, fp16 = read_folder(tmp_path / "bf16"), read_folder(tmp_path / "fp16")
    for name, values in weights.items():
        assert bf16[name] == ("BF16", values.shape, to_bf16(values).astype("<u2").tobytes())
        assert fp16[name] == ("F16", values.shape, values.astype("<f2").tobytes())


def test_a_trained_model_moves_to_another_number_of_daemons(cluster, start_cluster, tmp_path):
    job = make_job()
    folder = tmp_path / "out"
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(cluster, job) as session:
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        train(session, job, range(3), 5)
        luwuctl(cluster, "export", job.name, folder)
        expected = masters(session, job)
    assert read_file(folder / "model.safetensors")[1]["luwu.step"] == "3"
    other = start_cluster(nodes=3)
    with open_session(other, job) as session:
        luwuctl(other, "import", job.name, folder)
        assert_same(masters(session, job), expected)


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("kind", STATE_JOBS)
def test_training_goes_on_bit_for_bit_on_another_number_of_daemons(
    cluster, start_cluster, tmp_path, kind, steps
):
    job = make_job(**STATE_JOBS[kind])
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(cluster, job) as session:
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        train(session, job, range(steps), 5)
        luwuctl(cluster, "export", job.name, tmp_path / "out", "--optimizer-state")
        assert session.current_step == steps
        train(session, job, range(steps, steps + 4), 6)
        expected = masters(session, job)
    tensors, metadata = read_file(tmp_path / "out" / "optimizer.safetensors")
    assert metadata["luwu.step"] == str(steps)
    assert all(name.startswith("luwu.moment") for name in tensors)
    for nodes in (1, 3):
        other = start_cluster(nodes=nodes)
        open_session(other, job).close()  # makes the job
        luwuctl(other, "import", job.name, tmp_path / "out", "--optimizer-state")
        with open_session(other, job) as session:
            assert session.current_step == steps
            train(session, job, range(steps, steps + 4), 6)
            assert_same(masters(session, job), expected)


def test_state_of_another_optimizer_is_refused(cluster, tmp_path):
    job = make_job()
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        luwuctl(cluster, "export", job.name, tmp_path / "out", "--optimizer-state")
    other = make_job(optimizer=luwu.AdamW(lr=0.01, amsgrad=True))
    with open_session(cluster, other):
        arguments = ("import", other.name, tmp_path / "out", "--optimizer-state")
        done = luwuctl(cluster, *arguments, ok=False)
        assert "luwu.moment3" in done.stderr or "amsgrad" in done.stderr
    arguments = ("export", job.name, tmp_path / "half", "--optimizer-state", "--dtype", "bf16")
    half = luwuctl(cluster, *arguments, ok=False)
    assert "float32 masters" in half.stderr


def test_an_export_is_replaced_only_when_asked(cluster, tmp_path):
    job = make_job()
    write_file(tmp_path / "in.safetensors", make_weights())
    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        luwuctl(cluster, "export", job.name, tmp_path / "out")
        refused = luwuctl(cluster, "export", job.name, tmp_path / "out", ok=False)
        assert "already exists" in refused.stderr and "overwrite" in refused.stderr
        luwuctl(cluster, "export", job.name, tmp_path / "out", "--overwrite", "--dtype", "bf16")
    assert read_folder(tmp_path / "out")["scale"][0] == "BF16"


def test_what_does_not_fit_is_named(cluster, tmp_path):
    job, weights = make_job(), make_weights()
    path = tmp_path / "model.safetensors"

    def refused(tensors, *parts, arguments=()):
        write_file(path, tensors)
        done = luwuctl(cluster, "import", job.name, path, *arguments, ok=False)
        for part in parts:
            assert part in done.stderr
        assert len(done.stderr.splitlines()) == 1

    with open_session(cluster, job) as session:
        refused(
            {**weights, "scale": np.zeros((1,), np.float32)},
            "'scale' has shape [1]", "[] in the job", str(path), "node node",
        )
        missing = {name: v for name, v in weights.items() if name != "lm_head.bias"}
        refused(missing, "lacks 1 of the tensors", "'lm_head.bias'")
        extra = {**weights, "rotary.inv_freq": np.zeros(4, np.float32)}
        refused(extra, "'rotary.inv_freq'")
        path.write_bytes(b"\xff" * 100)
        assert "at most 100000000" in luwuctl(cluster, "import", job.name, path, ok=False).stderr
        gone = luwuctl(cluster, "import", job.name, tmp_path / "gone", ok=False)
        assert "not found" in gone.stderr and str(tmp_path / "gone") in gone.stderr
        # None of these has begun anything.
        write_file(path, missing)
        luwuctl(cluster, "import", job.name, path, "--allow-missing")
        zeros = {**weights, "lm_head.bias": np.zeros(7, np.float32)}
        assert_same(masters(session, job), zeros)
        write_file(path, extra)
        luwuctl(cluster, "import", job.name, path, "--allow-unexpected")
        assert_same(masters(session, job), weights)
        train(session, job, [0], 3)
        write_file(path, weights)
        late = luwuctl(cluster, "import", job.name, path, ok=False)
        assert "training" in late.stderr


def test_jobs_without_weights_and_unknown_jobs_are_refused(cluster, tmp_path):
    job = make_job()
    with open_session(cluster, job):
        done = luwuctl(cluster, "export", job.name, tmp_path / "out", ok=False)
        assert "no weights yet" in done.stderr
    done = luwuctl(cluster, "export", "nobody", tmp_path / "out", ok=False)
    assert "not found" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_large_model_is_exported_in_several_files(start_cluster, tmp_path):
    count, values = 200_000, np.random.default_rng(2).standard_normal(600_000).astype(np.float32)
    tensors = tuple(luwu.TensorSpec(f"t{i}", (count,), i * count) for i in range(3))
    options = {"optimizer": luwu.SGD(lr=0.1), "served": luwu.DType.FLOAT32}
    jobs = [
        luwu.JobSpec(name, 1, (luwu.LayerSpec("all", 3 * count, tensors),), **options)
        for name in ("from", "to")
    ]
    running = start_cluster(nodes=2, memory="512MiB")
    with open_session(running, jobs[0]) as session:
        session.load(0, values)
        session.finish_load()
        arguments = ("export", "from", tmp_path / "out", "--max-file-bytes", 1_000_000)
        files = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
        report = json.loads(luwuctl(running, "-o", "json", *arguments).stdout)
        assert report["files"] == [*files, "model.safetensors.index.json"]
    assert all((tmp_path / "out" / file).stat().st_size <= 1_000_000 for file in files)
    assert {name: read[2] for name, read in read_folder(tmp_path / "out").items()} == {
        f"t{i}": values[i * count : (i + 1) * count].tobytes() for i in range(3)
    }
    with open_session(running, jobs[1]) as session:
        luwuctl(running, "import", "to", tmp_path / "out")
        np.testing.assert_array_equal(session.read(0), values)


@contextlib.contextmanager
def export_that_waits(cluster, folder):
    """An export in the middle of a step: updates in place are half done, and it waits for their
    end. Yields the process and a function that ends the step."""
    job = make_job(keep_undo_state=False, on_non_finite="fail", update_mode="immediate")
    write_file(folder / "in.safetensors", make_weights())
    with open_session(cluster, job) as session:
        luwuctl(cluster, "import", job.name, folder / "in.safetensors")
        session.begin_step(0)
        gradients = [np.ones(layer.elements, np.float32) for layer in job.layers]
        session.push(0, gradients[0])

        def end_step():
            for index in range(1, len(gradients)):
                session.push(index, gradients[index])
            assert session.commit(0).applied

        command = [LUWUCTL, "-e", cluster.endpoints, "export", job.name, folder / "out"]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + TIMEOUT_S
            while not list(folder.glob("out/.luwu-export-*")) and time.monotonic() < end:
                time.sleep(0.01)
            assert process.poll() is None, process.stderr.read()
            yield process, end_step
        finally:
            process.kill()
            process.wait()


def test_an_interrupted_export_leaves_nothing(cluster, tmp_path):
    with export_that_waits(cluster, tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1
        assert "cancelled" in text
    assert not (tmp_path / "out").exists()  # the export had made it


def test_an_export_during_training_ends_naming_both_steps(cluster, tmp_path):
    with export_that_waits(cluster, tmp_path) as (process, end_step):
        end_step()
        _, text = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1
        assert "began at step 0" in text and "is at step 1 now" in text
        assert "paused" in text
    assert not (tmp_path / "out").exists()  # the export had made it


def test_paths_are_absolute(cluster):
    done = luwuctl(cluster, "import", "job", "relative/path", ok=False)
    assert done.returncode == 2
    assert "absolute" in done.stderr


def test_an_export_that_fails_leaves_nothing(cluster, tmp_path):
    job = make_job()
    write_file(tmp_path / "in.safetensors", make_weights())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").write_text("mine")
    with open_session(cluster, job):
        luwuctl(cluster, "import", job.name, tmp_path / "in.safetensors")
        cluster.kill(1)
        luwuctl(cluster, "export", job.name, tmp_path / "out", ok=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["note"]
