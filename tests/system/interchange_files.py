"""Jobs, safetensors files and luwuctl for the tests of import and export. Files are read and
written here by hand, from the format's description."""

import itertools
import json
import subprocess

import luwu
import numpy as np
from programs import LUWUCTL, TIMEOUT_S

_numbers = itertools.count()

# Names and shapes as of a small decoder; several tensors in a layer, and ragged shards.
LAYERS = (
    ("embed", (("model.embed_tokens.weight", (50, 8)),)),
    (
        "block",
        (
            ("model.layers.0.attn.weight", (24, 8)),
            ("model.layers.0.norm.weight", (8,)),
            ("model.layers.0.mlp.weight", (33, 8)),
        ),
    ),
    ("head", (("lm_head.bias", (7,)), ("scale", ()))),
)


def size_of(shape):
    return int(np.prod(shape, dtype=np.int64))


def make_job(**options):
    layers = []
    for name, tensors in LAYERS:
        specs, offset = [], 0
        for tensor, shape in tensors:
            specs.append(luwu.TensorSpec(tensor, shape, offset))
            offset += size_of(shape) + 3  # gaps
        layers.append(luwu.LayerSpec(name, offset, tuple(specs)))
    values = {
        "optimizer": luwu.AdamW(lr=0.01),
        "served": luwu.DType.FLOAT32,
        "gradients": luwu.DType.FLOAT32,
        "shard_elements": 64,
        "slots_per_worker": 8,
        "overflow_bytes": 1 << 20,
    }
    return luwu.JobSpec(f"model-{next(_numbers)}", 1, tuple(layers), **{**values, **options})


def make_weights(seed=1):
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape).astype(np.float32)
        for _, tensors in LAYERS
        for name, shape in tensors
    }


def to_bf16(values):
    """Rounds to nearest even, by hand."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_file(path, tensors, dtype="F32"):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = {
            "F32": lambda v: v.astype("<f4"),
            "F16": lambda v: v.astype("<f2"),
            "BF16": lambda v: to_bf16(v).astype("<u2"),
        }[dtype](values).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_file(path):
    """Name -> (dtype, shape, bytes), and the metadata."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0, "the data are aligned"
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + length :]
    tensors, covered = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        covered += end - begin
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    assert covered == len(data)
    return tensors, metadata


def read_folder(folder, base="model"):
    index = folder / f"{base}.safetensors.index.json"
    if not index.exists():
        return read_file(folder / f"{base}.safetensors")[0]
    tensors = {}
    for name, file in json.loads(index.read_text())["weight_map"].items():
        tensors[name] = read_file(folder / file)[0][name]
    return tensors


def luwuctl(cluster, *arguments, ok=True):
    done = subprocess.run(
        [LUWUCTL, "-e", cluster.endpoints, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode == 0) == ok, done.stderr + done.stdout
    return done


def masters(session, job):
    """By tensor, as the daemons have them."""
    got = {}
    for index, layer in enumerate(job.layers):
        flat = session.read(index)
        for tensor in layer.tensors:
            at = flat[tensor.offset : tensor.offset + size_of(tensor.shape)]
            got[tensor.name] = at.reshape(tensor.shape)
    return got


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert got[name].tobytes() == values.tobytes(), name


def open_session(cluster, job):
    return luwu.Session(cluster.endpoints, job, 0)


def train(session, job, steps, seed):
    random = np.random.default_rng(seed)
    for step in steps:
        session.begin_step(step)
        for index, layer in enumerate(job.layers):
            gradient = random.standard_normal(layer.elements).astype(np.float32)
            session.fetch(index, step)
            session.push(index, gradient)
        assert session.commit(step).applied


STATE_JOBS = {
    "adamw": {},
    "blockwise8-split": {
        "optimizer": luwu.AdamW(lr=0.01, state_precision="blockwise8", master_format="split"),
        "served": luwu.DType.BFLOAT16,
    },
    "bfloat16-lion": {"optimizer": luwu.Lion(lr=0.01, state_precision="bfloat16")},
    "adagrad": {"optimizer": luwu.Adagrad(lr=0.01, initial_accumulator_value=0.5)},
    "loss-scaling": {
        "optimizer": luwu.SGD(lr=0.01, momentum=0.9),
        "loss_scaling": luwu.LossScaling(init_scale=1024.0, growth_interval=4),
    },
}
