"""Regions beside their peers: `python tests/bench/regions.py [--quick] [--all] [--threads 2] [MODEL …]`.

Of each shared model: the float file, its `w8a8` file with QuantizeLinear and DequantizeLinear in onnxruntime, the same
with regions, its `bf16` file with regions, made without data, and, where OpenVINO is installed, float (which that may
compute in bfloat16 where it can) and the w8a8 file there. Plans are not tuned. Answers are compared with those of the
regions' bodies before anything is timed. The median of turns: of one thread its processor time, of more the time on the
wall. `--all` takes every shared model that has convolutions; at the end it names those that regions make slower, and
says how fast ours are beside OpenVINO.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "zoo")]

from zoo_models import load_zoo  # noqa: E402

import onnxq  # noqa: E402
from onnxq.model import graph  # noqa: E402
from onnxq.quality import compare_outputs  # noqa: E402

Feed = dict[str, NDArray]
Run = Callable[[Feed], list[NDArray]]

MODELS = (
    "squeezenet1_1",
    "cifar_resnet56_op10",
    "deeplabv3_mnv2",
    "style_mosaic",
    "super_resolution_ort",
    "dnsmos_sig_bak_ovr",
    "mobilenetv2_cifar10",
    "ultraface_rfb320",
)
#: dB between regions and their bodies, whose sums are in float32: wrong kernels give less, a tie here and there more.
LEAST_DB = 15.0
SAMPLES, TURNS, RUNS = 8, 9, 5
#: What may be noise.
NO_SLOWER = 1.02
#: Ours, and what runs the same network there.
BESIDE_OPENVINO = {"regions": "OpenVINO w8a8", "bf16": "OpenVINO float"}


def has_convolutions(path: Path) -> bool:
    model = ir.load(path)
    return any(node.op_type == "Conv" for node in (*graph.nodes(model), *_of_functions(model)))


def _of_functions(model: ir.Model) -> list[ir.Node]:
    return [node for function in model.functions.values() for node in function]


def in_onnxruntime(path: Path, threads: int) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxq.session(path, options)
    return lambda feed: list(session.run(None, feed))


def by_definition(path: Path) -> Run:
    """Without our library, and without the optimizer, whose int8 kernels round otherwise."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return lambda feed: list(session.run(None, feed))


def in_openvino(path: Path, threads: int) -> Run | None:
    try:
        import openvino
    except ImportError:
        return None
    config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    core: Any = openvino.Core()
    request = core.compile_model(str(path), "CPU", config).create_infer_request()

    def run(feed: Feed) -> list[NDArray]:
        request.infer(feed)
        return [request.get_output_tensor(i).data.copy() for i in range(len(request.results))]

    return run


def milliseconds(runs: dict[str, Run], feed: Feed, turns: int, clock: Callable[[], float]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            each = []
            for _ in range(RUNS):
                start = clock()
                run(feed)
                each.append(clock() - start)
            times[name].append(min(each))
    return {name: 1000 * statistics.median(found) for name, found in times.items()}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args(words)
    zoo = load_zoo()
    if zoo is None:
        sys.exit("the shared models are not there (ONNXQ_SHARED)")
    names = options.models or MODELS[: 1 if options.quick else None]
    if options.all:
        names = [name for name in zoo.MODELS if has_convolutions(zoo.model_path(name))]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    rows: dict[str, dict[str, float]] = {}
    warnings.simplefilter("ignore")
    for name in names:
        path = zoo.model_path(name)
        with tempfile.TemporaryDirectory() as made:
            files = {target: Path(made) / f"{target}.onnx" for target in ("ort-cpu", "onnxq")}
            for target, file in files.items():
                data = zoo.calibration(name, SAMPLES)
                onnxq.quantize(path, file, "w8a8", target=target, data=data, check=False)
            files["bf16"] = Path(made) / "bf16.onnx"
            onnxq.quantize(path, files["bf16"], "bf16", target="onnxq", check=False)
            runs: dict[str, Run] = {
                "float": in_onnxruntime(path, options.threads),
                "w8a8": in_onnxruntime(files["ort-cpu"], options.threads),
                "regions": in_onnxruntime(files["onnxq"], options.threads),
                "bf16": in_onnxruntime(files["bf16"], options.threads),
            }
            for word, file in (("OpenVINO float", path), ("OpenVINO w8a8", files["ort-cpu"])):
                run = in_openvino(file, options.threads)
                runs |= {} if run is None else {word: run}
            feed = zoo.inputs(name, 1)[0]
            ours, bodies = (
                [np.asarray(y) for y in run(feed)] for run in (runs["regions"], by_definition(files["onnxq"]))
            )
            outputs = [str(i) for i in range(len(ours))]
            same = compare_outputs(outputs, [bodies], [ours]).sqnr
            rounded = [[np.asarray(y) for y in runs[word](feed)] for word in ("float", "bf16")]
            near = compare_outputs(outputs, rounded[:1], rounded[1:]).sqnr
            if not same >= LEAST_DB:
                sys.exit(f"{name}: regions compute something else ({same:.1f} dB)")
            if not near >= LEAST_DB:
                sys.exit(f"{name}: bf16 regions compute something else ({near:.1f} dB)")
            rows[name] = found = milliseconds(runs, feed, 2 if options.quick else TURNS, clock)
        cells = [f"{ms:.2f} ({ms / found['float']:.2f})" for ms in found.values()]
        print(f"| {name} | {' | '.join(cells)} | {same:.0f}, {near:.0f} |", flush=True)
    of_w8a8 = {name: found["regions"] / found["w8a8"] for name, found in rows.items()}
    slower = [f"{name} {ratio:.2f}" for name, ratio in of_w8a8.items() if ratio > NO_SLOWER]
    print(f"slower with regions than without: {', '.join(slower) or 'none'}")
    for ours, theirs in BESIDE_OPENVINO.items():
        speeds = [found[theirs] / found[ours] for found in rows.values() if theirs in found]
        if speeds:
            said = f"{statistics.median(speeds):.2f}, from {min(speeds):.2f} to {max(speeds):.2f}"
            print(f"speed of {ours} over that of {theirs}: median {said}")


if __name__ == "__main__":
    main(sys.argv[1:])
