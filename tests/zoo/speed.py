"""How fast whole language models run: `python tests/zoo/speed.py [--write] [--models NAME …] [--threads 2]`.

The shared transformers, in float, by onnxruntime's own tools (MatMulNBits in blocks of 32 at accuracy level 4, and
dynamic int8), in OpenVINO where it is installed (the float file, in the precision that it takes by itself), and by
onnxq: static int8, and schemes without data for target onnxq. All files of a model run in turns in one process, on real
text of several lengths; before anything is timed, every output is compared with the float model's, and ours with those
of the same file without the compiled library. A turn is some runs of one file, of which the first
are not counted: the threads of the file before still wait for work, on the same processors.
"""

from __future__ import annotations

import importlib.metadata
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray
from started import parser_for, processor, start

import onnxq
from onnxq.quality import compare_outputs

#: Of each model the lengths to run, in tokens; 0: the sample's own.
MODELS = {
    "charlm": (1, 8, 32, 0),
    "rxn_albert": (8, 0),
    "stories260k_llama": (1, 32, 0),
    "gpt_nano_sort": (0,),
}
#: Ours, and for which target.
OURS = {"w8a8": "ort-cpu", "w4a16": "onnxq", "nf4": "onnxq", "w8a16": "onnxq", "bf16": "onnxq"}
OPENVINO = "OpenVINO"
#: dB between outputs with the compiled library and without: more than any wrong kernel gives.
LEAST_DB = 20.0
TABLE = Path(__file__).resolve().parents[2] / "docs" / "speed.md"
Feed = dict[str, NDArray]
Clock = Callable[[], float]
#: Runs of one file in a turn, and how many of them do not count.
RUNS, UNCOUNTED = 8, 3


class InOpenVino:
    """A model there, with the part of a session's interface that is used here."""

    def __init__(self, path: Path, threads: int) -> None:
        import openvino

        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._request = openvino.Core().compile_model(str(path), "CPU", hints).create_infer_request()

    def run(self, _: None, sample: Feed) -> list[NDArray]:
        return list(self._request.infer(sample).to_tuple())


def files(path: Path, data: Path, folder: Path) -> dict[str, Path]:
    """Every file to be run, by what it is called in the table."""
    found = {"float": path}
    for name, make in (("ORT int4", onnxruntime_int4), ("ORT dynamic int8", onnxruntime_dynamic)):
        found[name] = folder / f"{len(found)}.onnx"
        make(path, found[name])
    for word, target in OURS.items():
        found[f"onnxq {word}"] = folder / f"{len(found)}.onnx"
        has_data = word == "w8a8"
        onnxq.quantize(path, found[f"onnxq {word}"], word, target=target, data=data if has_data else None)
    return found


def onnxruntime_int4(path: Path, output: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(output))


def onnxruntime_dynamic(path: Path, output: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, output, weight_type=QuantType.QInt8, per_channel=True)


def shortened(feed: Feed, length: int) -> Feed:
    """The first `length` tokens of [1, T] inputs."""
    tokens = token_count(feed)
    return {name: x[:, :length] if x.shape == (1, tokens) and length else x for name, x in feed.items()}


def token_count(feed: Feed) -> int:
    return max(x.shape[1] for x in feed.values() if x.ndim == 2)


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return onnxq.session(path, options, ["CPUExecutionProvider"])


def rows(zoo: ModuleType, name: str, threads: int, seconds: float, clock: Clock) -> Iterator[str]:
    """One line of the table for each length.

    Raises:
        SystemExit: one of our files gives something else with the compiled library than without.
    """
    feed = zoo.inputs(name, 1)[0]
    with tempfile.TemporaryDirectory() as folder:
        data = zoo.export_calibration(name, Path(folder) / "data.npz", 64)
        paths = files(zoo.model_path(name), data, Path(folder))
        sessions: dict[str, Any] = {what: open_session(file, threads) for what, file in paths.items()}
        if openvino_version():
            sessions[OPENVINO] = InOpenVino(paths["float"], threads)
        for length in MODELS[name]:
            sample = shortened(feed, length)
            wanted = sessions["float"].run(None, sample)
            outputs = [output.name for output in sessions["float"].get_outputs()]
            decibels = {}
            for what, session in sessions.items():
                found = session.run(None, sample)
                decibels[what] = compare_outputs(outputs, [wanted], [found]).sqnr
                if what.startswith("onnxq"):
                    bare = onnxruntime.InferenceSession(paths[what], providers=["CPUExecutionProvider"])
                    alike = compare_outputs(outputs, [bare.run(None, sample)], [found]).sqnr
                    if alike < LEAST_DB:
                        raise SystemExit(f"{name}, {what}: {alike:.1f} dB, the result is wrong")
            times: dict[str, list[float]] = {what: [] for what in sessions}
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(times["float"]) < RUNS:
                for what, session in sessions.items():
                    times[what] += [seconds_of(session, sample, clock) for _ in range(RUNS)][UNCOUNTED:]
            median = {what: statistics.median(found) for what, found in times.items()}
            tokens = token_count(sample)
            cells = [f"{tokens / median['float']:.0f}"]
            for what in list(sessions)[1:]:
                speed, ratio = tokens / median[what], median["float"] / median[what]
                cells.append(f"{speed:.0f} ({ratio:.2f}×, {decibels[what]:.0f} dB)")
            yield f"| {name} | {tokens} | {' | '.join(cells)} |"


def openvino_version() -> str:
    """Empty where it is not installed."""
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return ""


def seconds_of(session: Any, sample: Feed, clock: Clock) -> float:
    start = clock()
    session.run(None, sample)
    return clock() - start


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--write", nargs="?", type=Path, const=TABLE, help=f"put the table into this file, or into docs/{TABLE.name}"
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--processor-time", action="store_true", help="of the process: where other programs run; with --threads 1"
    )
    parser.add_argument("--note", default="", help="a sentence about how it was measured, for the head of the table")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which the files of a row run in turns")
    options, zoo = start(parser)
    logging.disable(logging.WARNING)
    openvino = openvino_version()
    heads = ["model", "tokens", "float", "ORT int4", "ORT dynamic int8", *(f"onnxq {word}" for word in OURS)]
    heads += [OPENVINO] * bool(openvino)
    runtimes = f"onnxruntime {onnxruntime.__version__}" + f", OpenVINO {openvino.partition('-')[0]}" * bool(openvino)
    lines = [
        "# How fast whole models run",
        "",
        f"Tokens a second{' of processor time' * options.processor_time}, {counted(options.threads)}, {runtimes}; in",
        "brackets the speed relative to float, and the signal to noise ratio of the outputs. All files of a row run in "
        "turns.",
        f"Written by `python tests/zoo/speed.py --write`; processor: {processor()}.",
        *filter(None, [options.note]),
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    print("\n".join(lines[-2:]))
    clock = time.process_time if options.processor_time else time.perf_counter
    kept = kept_rows(options.write, lines) if options.write else {}
    for name in MODELS:
        measured = rows(zoo, name, options.threads, options.seconds, clock)
        for line in measured if name in options.models else kept.get(name, []):
            print(line, flush=True)
            lines.append(line)
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


def counted(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def kept_rows(table: Path, head: list[str]) -> dict[str, list[str]]:
    """By model, the rows of a table that was begun in the same way: models may be measured one after the other."""
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    if lines[: len(head)] != head:
        return {}
    return {name: [line for line in lines if line.startswith(f"| {name} |")] for name in MODELS}


if __name__ == "__main__":
    main()
