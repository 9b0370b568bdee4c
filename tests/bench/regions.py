"""Regions beside what else runs int8 networks: `python tests/bench/regions.py [--quick] [--all] [MODEL …]`.

Of each shared model: the float file, its `w8a8` file with QuantizeLinear and DequantizeLinear in onnxruntime, the same
with regions, its `bf16` file with regions, made without data, and, where OpenVINO is installed, float (which that may
compute in bfloat16 where it can) and the w8a8 file there. Plans are not tuned. Answers are compared with those of the
regions' bodies before anything is timed. Processor time on one thread, the median of turns. `--all` takes every shared
model that has convolutions; at the end it names those that regions make slower.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
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
    "super_resolution_ort",
    "dnsmos_sig_bak_ovr",
    "mobilenetv2_cifar10",
    "ultraface_rfb320",
    "mlperf_vww_mobilenet",
)
#: dB between regions and their bodies, whose sums are in float32: wrong kernels give less, a tie here and there more.
LEAST_DB = 15.0
SAMPLES, TURNS, RUNS = 8, 9, 5
#: What may be noise.
NO_SLOWER = 1.02


def has_convolutions(path: Path) -> bool:
    model = ir.load(path)
    return any(node.op_type == "Conv" for node in (*graph.nodes(model), *_of_functions(model)))


def _of_functions(model: ir.Model) -> list[ir.Node]:
    return [node for function in model.functions.values() for node in function]


def in_onnxruntime(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxq.session(path, options)
    return lambda feed: list(session.run(None, feed))


def by_definition(path: Path) -> Run:
    """Without our library, and without the optimizer, whose int8 kernels round otherwise."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return lambda feed: list(session.run(None, feed))


def in_openvino(path: Path) -> Run | None:
    try:
        import openvino
    except ImportError:
        return None
    config = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    core: Any = openvino.Core()
    request = core.compile_model(str(path), "CPU", config).create_infer_request()

    def run(feed: Feed) -> list[NDArray]:
        request.infer(feed)
        return [request.get_output_tensor(i).data.copy() for i in range(len(request.results))]

    return run


def milliseconds(runs: dict[str, Run], feed: Feed, turns: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            each = []
            for _ in range(RUNS):
                start = time.process_time()
                run(feed)
                each.append(time.process_time() - start)
            times[name].append(min(each))
    return {name: 1000 * statistics.median(found) for name, found in times.items()}


def main(words: list[str]) -> None:
    zoo = load_zoo()
    if zoo is None:
        sys.exit("the shared models are not there (ONNXQ_SHARED)")
    quick = "--quick" in words
    names = [word for word in words if not word.startswith("-")] or MODELS[: 1 if quick else None]
    if "--all" in words:
        names = [name for name in zoo.MODELS if has_convolutions(zoo.model_path(name))]
    slower = []
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
                "float": in_onnxruntime(path),
                "w8a8": in_onnxruntime(files["ort-cpu"]),
                "regions": in_onnxruntime(files["onnxq"]),
                "bf16": in_onnxruntime(files["bf16"]),
            }
            for word, file in (("OpenVINO float", path), ("OpenVINO w8a8", files["ort-cpu"])):
                run = in_openvino(file)
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
            found = milliseconds(runs, feed, 2 if quick else TURNS)
        if found["regions"] > found["w8a8"] * NO_SLOWER:
            slower.append(f"{name} {found['regions'] / found['w8a8']:.2f}")
        cells = [f"{ms:.2f} ({ms / found['float']:.2f})" for ms in found.values()]
        print(f"| {name} | {' | '.join(cells)} | {same:.0f}, {near:.0f} |", flush=True)
    print(f"slower with regions than without: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])
