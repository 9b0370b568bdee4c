"""A model of 1 GB of 4-bit weights in external data: time to load, resident memory, time of one row.

    python custom_ops/bench/bench_load.py [--layers 100]

A chain of 4096 × 4096 products in blocks of 32, as onnxq::MatMulNBits (float16 scales) and as onnxruntime's MatMulNBits
of accuracy level 4 (float32 scales, which its kernels need). Each is measured in a process of its own, in turns. Bytes
that are mapped from the file belong to the page cache and are shared between processes; the others are the process's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

import onnxq

SIZE, BLOCK = 4096, 32
DOMAINS = {"onnxq": "onnxq", "onnxruntime": "com.microsoft"}


def build(kind: str, layers: int, folder: Path) -> Path:
    """The model file; its weights lie beside it, each at the start of a page."""
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    ours = kind == "onnxq"
    own = {"format": "int4"} if ours else {"bits": 4, "accuracy_level": 4}
    with (folder / f"{kind}.bin").open("wb") as data:
        for layer in range(layers):
            codes = rng.integers(0, 256, (SIZE // 16, SIZE // 8, 16, 4), np.uint8)
            scales = rng.uniform(0, 0.002, (SIZE // 16, SIZE // BLOCK, 16))
            if not ours:
                codes, scales = codes.reshape(SIZE, SIZE // BLOCK, -1), scales.reshape(SIZE, -1)
            arrays = {f"w{layer}": codes, f"s{layer}": scales.astype(np.float16 if ours else np.float32)}
            tensors += [_external(name, array, data) for name, array in arrays.items()]
            nodes.append(
                helper.make_node(
                    "MatMulNBits",
                    [f"x{layer}", *arrays],
                    [f"x{layer + 1}"],
                    domain=DOMAINS[kind],
                    K=SIZE,
                    N=SIZE,
                    block_size=BLOCK,
                    **own,
                )
            )
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["M", SIZE]) for i in (0, layers)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAINS[kind], 1)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    path = folder / f"{kind}.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return path


def _external(name: str, array: NDArray, data: BinaryIO) -> TensorProto:
    data.write(bytes(-data.tell() % 4096))
    place = {"location": Path(data.name).name, "offset": str(data.tell()), "length": str(array.nbytes)}
    data.write(array.tobytes())
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def resident() -> dict[str, float]:
    """Megabytes of this process: all, and those that are not mapped from files. Linux only."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return {"all": int(fields["Rss"]) / 1000, "own": int(fields["Anonymous"]) / 1000}


def measure(path: Path, threads: int) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    before, begin = resident(), time.perf_counter()
    session = onnxq.session(path, options, ["CPUExecutionProvider"])
    load = time.perf_counter() - begin
    feed = {session.get_inputs()[0].name: np.ones((1, SIZE), np.float32)}
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        session.run(None, feed)
        seconds.append(time.perf_counter() - begin)
    after = resident()
    memory = {key: after[key] - before[key] for key in after}
    return {"load": load, "first": seconds[0], "run": float(np.median(seconds[1:])), **memory}


@click.command()
@click.option("--layers", default=100, show_default=True, help="10 MB each.")
@click.option("--threads", default=2, show_default=True)
@click.option("--times", default=3, show_default=True)
@click.option("--one", type=click.Path(path_type=Path), hidden=True)
def main(layers: int, threads: int, times: int, one: Path | None) -> None:
    """Load and run a large model with onnxq's kernels and with onnxruntime's own."""
    if one:
        print(json.dumps(measure(one, threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: build(kind, layers, Path(folder)) for kind in DOMAINS}
        results: dict[str, list[dict[str, float]]] = {kind: [] for kind in DOMAINS}
        for _ in range(times):
            for kind, path in paths.items():
                command = [sys.executable, __file__, "--one", str(path), "--threads", str(threads)]
                results[kind].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print("| | file, MB | load, s | first row, s | a row, ms | resident, MB | of these not the file's, MB |")
        print("|---" * 7 + "|")
        for kind, each in results.items():
            median = {key: float(np.median([result[key] for result in each])) for key in each[0]}
            size = paths[kind].with_suffix(".bin").stat().st_size / 1e6
            times_ = f"{median['load']:.3f} | {median['first']:.3f} | {median['run'] * 1e3:.1f}"
            print(f"| {kind} | {size:.0f} | {times_} | {median['all']:.0f} | {median['own']:.0f} |")


if __name__ == "__main__":
    main()
