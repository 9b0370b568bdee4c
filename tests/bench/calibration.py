"""Calibration against onnxruntime's calibrators: `python tests/bench/calibration.py [--quick] [--model … --data …]`.

Both calibrate the same model on the same samples, on all cores: onnxruntime the values that `quantize_static` would, or
with --same-values only those that onnxq needs, for which it has no option. Every run is a process of its own, which is
what its peak memory is of; runs of all kinds take turns. Time goes from the model on disk to the ranges. Ranges are
compared first, minmax with onnxruntime's and percentiles with numpy's of the activations themselves; where they
disagree, nothing is printed but that. The table of docs/calibration.md is this script's output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from onnxq.calibration import calibrate
from onnxq.collectors.percentile import PERCENTILE
from onnxq.job import open_job
from onnxq.passes.observe.expose_values import ExposeValues
from onnxq.planning.scales import values_to_observe
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session
from onnxq.samples.pictures.images import parse_preprocessing
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import inputs_of, open_data

PEERS = {"minmax": "MinMax", "percentile": "Percentile"}
KINDS = ("float", *PEERS, *(f"onnxruntime {method}" for method in PEERS))
#: Shares of a range by which its ends may differ: the rounding of other kernels, or a bin of our histogram.
TOLERANCE = 1e-3
#: Samples on which percentiles are compared with numpy's, for which every activation is kept.
CHECKED = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network, few samples, one round")
    parser.add_argument("--model", help="a model; by default a network made here")
    parser.add_argument("--data", help="its samples, as for onnxq calibrate")
    parser.add_argument("--preprocess", help="likewise")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--same-values", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[], choices=KINDS, help="kinds of runs to leave out")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return
    samples, rounds = (6, 1) if options.quick else (options.samples, options.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = prepare(options, folder, samples)
        if options.same_values:
            (folder / "same").touch()
        runs: dict[str, list[dict]] = {kind: [] for kind in KINDS if kind not in options.skip}
        for _ in range(rounds):
            for kind in runs:
                runs[kind].append(run(kind, folder, samples))
        twice = {kind: run(kind, folder, samples // 2) for kind in runs if kind in PEERS}
        exact = json.loads((folder / "exact.json").read_text())
        few = {kind: run(kind, folder, CHECKED)["ranges"] for kind in runs if "percentile" in kind}
    off = {kind: distance(ranges, exact) for kind, ranges in few.items()}
    off |= {
        kind: distance(done[0]["ranges"], runs["minmax"][0]["ranges"])
        for kind, done in runs.items()
        if "minmax" in kind
    }
    for kind in ("percentile", "onnxruntime minmax"):
        if off.get(kind, 0) > TOLERANCE:
            sys.exit(f"the ranges of {kind} are off by {off[kind]:.2%}")
    report(runs, twice, off, values, samples)


def prepare(options: argparse.Namespace, folder: Path, samples: int) -> int:
    """Leaves the prepared model, the samples and the names of the values to observe in `folder`; how many those are."""
    path, data = options.model, options.data
    if path is None:
        path = folder / "made.onnx"
        onnx.save(network(32 if options.quick else 224), path)
        data = [{"x": picture(32 if options.quick else 224, seed)} for seed in range(samples)]
    preprocessing = parse_preprocessing(options.preprocess) if options.preprocess else None
    job = open_job(path, Recipe("w8a8"), data=Sampling(data, preprocessing, samples))
    ir.save(job.model, folder / "model.onnx")
    assert job.data is not None
    for i, feed in enumerate(job.data):
        np.savez(folder / f"{i:05}.npz", **feed)
    names = values_to_observe(job.model, job.plan)
    (folder / "names.json").write_text(json.dumps(names))
    (folder / "exact.json").write_text(
        json.dumps(percentiles(job.model, names, sorted(folder.glob("*.npz"))[:CHECKED]))
    )
    return len(names)


def percentiles(model: ir.Model, names: list[str], files: list[Path]) -> dict[str, list[float]]:
    """The range of each value by the definition of the method."""
    model = model.clone()
    expose = ExposeValues(names)
    expose(model)
    session = Session(model, threads=0)
    seen = [session.run(feed, [str(name) for name in expose.outputs]) for feed in read(files)]
    found = {}
    for name, arrays in zip(names, zip(*seen, strict=True), strict=True):
        x = np.concatenate([array.ravel() for array in arrays])
        low, high = (np.percentile(end, PERCENTILE, method="inverted_cdf") for end in (-x, x))
        found[name] = [-float(low), float(high)]
    return found


def network(size: int) -> onnx.ModelProto:
    """Bottlenecks of 1×1, 3×3 and 1×1 convolutions around shortcuts, like ResNet-50, with random weights."""
    rng = np.random.default_rng(0)
    nodes, constants = [], []

    def conv(x: str, channels: int, out: int, side: int, stride: int = 1) -> str:
        name = f"c{len(constants)}"
        w = rng.standard_normal((out, channels, side, side)) * np.sqrt(2 / (side**2 * channels))
        constants.append(onnx.numpy_helper.from_array(w.astype(np.float32), f"{name}_w"))
        attributes = {"kernel_shape": [side] * 2, "pads": [side // 2] * 4, "strides": [stride] * 2}
        nodes.append(onnx.helper.make_node("Conv", [x, f"{name}_w"], [name], name=name, **attributes))
        return name

    def node(op: str, *inputs: str) -> str:
        name = f"n{len(nodes)}"
        nodes.append(onnx.helper.make_node(op, inputs, [name], name=name))
        return name

    x, channels = "x", 3
    for out in (32, 64, 128):
        x, channels = node("Relu", conv(x, channels, out, 3, 2)), out
        for _ in range(2):
            inner = node("Relu", conv(x, out, out // 4, 1))
            inner = node("Relu", conv(inner, out // 4, out // 4, 3))
            x = node("Relu", node("Add", conv(inner, out // 4, out, 1), x))
    nodes.append(onnx.helper.make_node("GlobalAveragePool", [x], ["y"], name="pool"))
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, size, size])
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, channels, 1, 1])
    graph = onnx.helper.make_graph(nodes, "g", [given], [made], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


def picture(size: int, seed: int) -> NDArray[np.float32]:
    """Noise with long waves, as pictures have."""
    rng = np.random.default_rng(seed)
    waves = np.add.outer(rng.uniform(-3, 3, 3)[:, None] * np.linspace(0, 6, size), np.linspace(0, 6, size))
    return (np.sin(waves) + 0.3 * rng.standard_normal((3, size, size)))[None].astype(np.float32)


def run(kind: str, folder: Path, samples: int) -> dict:
    command = [sys.executable, __file__, "--worker", kind, str(folder), str(samples)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def work(kind: str, folder: str, samples: str) -> None:
    """One run, in a process of its own: seconds, peak bytes and ranges as JSON."""
    model, names = Path(folder) / "model.onnx", json.loads((Path(folder) / "names.json").read_text())
    files = sorted(Path(folder).glob("*.npz"))[: int(samples)]
    start, started = time.perf_counter(), time.process_time()
    if kind == "float":
        found = inference(model, files)
    elif kind in PEERS:
        found = ours(kind, model, names, files)
    else:
        found = theirs(kind.split()[1], model, names, files, Path(folder))
    seconds, cpu = time.perf_counter() - start, time.process_time() - started
    # Not ru_maxrss, which begins with what the parent process has.
    peak = 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "ranges": found}))


def read(files: list[Path]) -> Iterator[dict[str, NDArray]]:
    for file in files:
        with np.load(file) as arrays:
            yield dict(arrays)


def inference(model: Path, files: list[Path]) -> dict[str, list[float]]:
    session = Session(model, threads=0)
    for feed in read(files):
        session.run(feed)
    return {}


def ours(method: str, path: Path, names: list[str], files: list[Path]) -> dict[str, list[float]]:
    model = ir.load(path)
    data = open_data(files[0].parent, inputs_of(model)).limited(len(files))
    found = calibrate.calibrate(model, names, data, method, threads=0)
    return {name: [r.low, r.high] for name, r in found.values.items()}


def theirs(method: str, path: Path, names: list[str], files: list[Path], folder: Path) -> dict[str, list[float]]:
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._samples = read(files)

        def get_next(self) -> dict[str, NDArray] | None:
            return next(self._samples, None)

    # What it counts on both sides together is half of ours on each.
    extra = {"percentile": {"percentile": 100 - 2 * (100 - PERCENTILE)}}.get(method, {})
    import onnxruntime.quantization.calibrate as module

    if (folder / "same").exists():
        select = module.CalibraterBase.select_tensors_to_calibrate
        module.CalibraterBase.select_tensors_to_calibrate = lambda *x: (set(names), select(*x)[1])
    calibrator = create_calibrator(
        path,
        augmented_model_path=str(folder / "augmented.onnx"),
        calibrate_method=getattr(CalibrationMethod, PEERS[method]),
        extra_options=extra,
    )
    calibrator.collect_data(Reader())
    found = calibrator.compute_data()
    return {name: [float(np.min(x)) for x in found[name].range_value] for name in names}


def distance(ranges: dict[str, list[float]], wanted: dict[str, list[float]]) -> float:
    """The most by which any end is off, as a share of the range."""
    assert ranges.keys() == wanted.keys()
    return max(
        max(abs(low - wanted[name][0]), abs(high - wanted[name][1])) / max(wanted[name][1] - wanted[name][0], 1e-12)
        for name, (low, high) in ranges.items()
    )


def report(
    runs: dict[str, list[dict]], half: dict[str, dict], off: dict[str, float], values: int, samples: int
) -> None:
    seconds = {kind: statistics.median(r["seconds"] for r in done) for kind, done in runs.items()}
    cpu = {kind: statistics.median(r["cpu"] for r in done) for kind, done in runs.items()}
    peak = {kind: statistics.median(r["peak"] for r in done) for kind, done in runs.items()}
    table = Table(title=f"{values} values, {samples} samples", box=None)
    for heading in ("", "seconds", "CPU s", "MB", "faster", "memory", "to float", "half MB", "off by"):
        table.add_column(heading, justify="left" if not heading else "right")
    for kind in runs:
        peer = f"onnxruntime {kind}"
        row = [f"{seconds[kind]:.2f}", f"{cpu[kind]:.2f}", f"{peak[kind] / 1e6:.0f}"]
        row.append(f"{seconds[peer] / seconds[kind]:.1f}×" if peer in runs else "")
        row.append(f"{peak[kind] / peak[peer]:.2f}×" if peer in runs else "")
        row.append(f"{seconds[kind] / seconds['float'] - 1:+.0%}" if "float" in seconds else "")
        row.append(f"{half[kind]['peak'] / 1e6:.0f}" if kind in half else "")
        row.append(f"{off[kind]:.2%}" if kind in off else "")
        table.add_row(kind, *row)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
