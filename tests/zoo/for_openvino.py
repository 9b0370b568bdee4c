"""Our files for OpenVINO against NNCF's: `python tests/zoo/for_openvino.py [--write] [--scores] [--again] [NAME …]`.

Every shared model as it is, quantized by NNCF with its defaults, and by onnxq (w8a8, target openvino), from the same
samples; all three run in OpenVINO as its users run it. Scores are the zoo's own on real data; times are taken in turns
in the same process. One model after the other, whose row is written at once: what is in the table is not measured
again, unless it is named or `--again` is given, so the script can be ended at any time and goes on where it was.
`--scores` leaves the times out, which want a quiet machine: with `--folder` files are kept, of which `--times` measures
the times alone, in a few seconds a model. It needs `pip install '.[openvino]' nncf`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from started import parser_for, processor, start
from tables import TableRow, read_rows

import onnxq
from onnxq.errors import first_line
from onnxq.runtime.consumers import openvino as consumer
from onnxq.runtime.timing import race

TABLE = Path(__file__).resolve().parents[2] / "docs" / "openvino.md"
HEADER = ("model", "metric", "float", "NNCF", "onnxq", "ms: float", "NNCF", "onnxq", "int8 of NNCF", "of onnxq", "on")
#: Samples that both calibrate with, and seconds for which each file is timed.
SAMPLES, SECONDS = 64, 1.0
INTEGERS = ("i8", "u8")
MISSING = "–"
#: What is compared, and the files that are made.
WORDS = ("float", "nncf", "ours")
FILES = {"nncf": "nncf.xml", "ours": "ours.onnx"}


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text; a score that is no number says why there is none."""

    model: str
    metric: str
    in_float: str
    nncf: str
    ours: str
    float_ms: str
    nncf_ms: str
    our_ms: str
    nncf_int8: str
    our_int8: str
    machine: str


class Opened:
    """A file in OpenVINO, as the zoo calls models and as they are timed."""

    threads = 1

    def __init__(self, path: Path) -> None:
        self._session = consumer.Session(path, self.threads)

    def __call__(self, feed: dict[str, NDArray]) -> list[NDArray]:
        return self.run(feed)

    def run(self, feed: dict[str, NDArray]) -> list[NDArray]:
        known = self._session.inputs
        found = self._session.run({name: np.ascontiguousarray(x) for name, x in feed.items() if name in known})
        return [np.array(x) for x in found]  # its buffers are used again in the next run

    def int8(self) -> str:
        """How many convolutions and products compute in integers, of how many."""
        types = self._session.precisions()
        return f"{sum(types[word] for word in INTEGERS)} of {types.total()}"


def by_nncf(zoo: ModuleType, name: str, folder: Path) -> Path:
    """What NNCF makes of the model with its defaults."""
    import nncf
    import openvino

    output = folder / "nncf.xml"
    if output.exists():
        return output
    nncf.set_log_level(logging.ERROR)
    model = openvino.Core().read_model(str(zoo.model_path(name)))
    samples = zoo.calibration(name, SAMPLES)
    known = {word for value in model.inputs for word in value.get_names()}
    data = nncf.Dataset([{key: x for key, x in feed.items() if key in known} for feed in samples])
    openvino.save_model(nncf.quantize(model, data, subset_size=len(samples)), str(output), compress_to_fp16=False)
    return output


def by_onnxq(zoo: ModuleType, name: str, folder: Path) -> Path:
    output = folder / "ours.onnx"
    if output.exists():
        return output
    data = zoo.export_calibration(name, folder / "data.npz", SAMPLES)
    # What is in no type that int8 kernels read is copied: that is what a user gets.
    return onnxq.quantize(zoo.model_path(name), output, "w8a8", target="openvino", data=data).output


def scored(zoo: ModuleType, name: str, opened: Opened) -> float:
    """The zoo's score of a model in OpenVINO."""
    entry = zoo.MODELS[name]
    samples = list(entry.samples("eval"))
    found = [np.asarray(entry.predict(opened, sample)) for sample, _ in samples]
    references = zoo.float_predictions(name) if entry.vs_float else None
    return float(next(iter(entry.measure(found, [label for _, label in samples], references).values())))


def measure(zoo: ModuleType, name: str, folder: Path, *, times: bool) -> Row:
    """All three files of one model, which `folder` keeps."""
    metric = zoo.MODELS[name].metric
    files: dict[str, Opened] = {}
    scores: dict[str, str] = {}
    for word, make in makers_of(zoo, name, folder).items():
        try:
            opened = Opened(make())
            scores[word] = f"{scored(zoo, name, opened):.4g}"
            files[word] = opened
        except Exception as error:  # whatever the other tool stumbles over is a result
            scores[word] = f"fails: {type(error).__name__}"
            print(f"{name}, {word}: {first_line(error)}", flush=True)
    milliseconds = timed(zoo, name, files) if times else dict.fromkeys(WORDS, MISSING)
    kernels = {word: opened.int8() for word, opened in files.items()}
    of = {word: kernels.get(word, MISSING) for word in WORDS}
    three, ms = [scores[word] for word in WORDS], list(milliseconds.values())
    return Row(name, metric, *three, *ms, of["nncf"], of["ours"], processor())


def makers_of(zoo: ModuleType, name: str, folder: Path) -> dict[str, Callable[[], Path]]:
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "float": lambda: zoo.model_path(name),
        "nncf": lambda: by_nncf(zoo, name, folder),
        "ours": lambda: by_onnxq(zoo, name, folder),
    }


def timed(zoo: ModuleType, name: str, files: dict[str, Opened]) -> dict[str, str]:
    """Milliseconds of a run of each, in turns."""
    milliseconds = dict.fromkeys(WORDS, MISSING)
    if len(files) > 1:
        feed = zoo.inputs(name, 1)[0]
        found = race(list(files.values()), [feed] * len(files), seconds=SECONDS * len(files))
        milliseconds |= {word: f"{1e3 * s:.3g}" for word, s in zip(files, found.seconds, strict=True)}
    return milliseconds


def timed_again(zoo: ModuleType, row: Row, folder: Path) -> Row:
    """The row with the times of the files that `folder` has."""
    are_there = {"float": True} | {word: (folder / name).exists() for word, name in FILES.items()}
    makers = makers_of(zoo, row.model, folder)
    failed = dict(zip(WORDS, (row.in_float, row.nncf, row.ours), strict=True))
    files = {word: Opened(makers[word]()) for word in WORDS if are_there[word] and not failed[word].startswith("fails")}
    float_ms, nncf_ms, our_ms = timed(zoo, row.model, files).values()
    return replace(row, float_ms=float_ms, nncf_ms=nncf_ms, our_ms=our_ms, machine=processor())


def render(rows: list[Row]) -> str:
    versions = ", ".join(f"{word} {importlib.metadata.version(word)}" for word in ("openvino", "nncf"))
    return "\n".join(
        [
            "# Files for OpenVINO",
            "",
            "Made by `python tests/zoo/for_openvino.py --write`. The zoo's models in OpenVINO, one thread, its other",
            "settings as they are (on processors with AMX it computes floats in bf16): the float file, what NNCF makes",
            "of it with its defaults, and `onnxq -s w8a8 -t openvino`, both from the same 64 samples. Scores are of",
            "real data that nobody calibrated with; milliseconds are the least of runs in turns; int8 is how many",
            f"convolutions and products compute in integers; {MISSING} was not measured. {versions}.",
            "",
            "Plans of onnxq are timed in OpenVINO, and leave in float what is no faster there in integers. Which",
            "processor a row was measured on is in its last column: times of two of them say nothing of each other.",
            "",
            "Four float files OpenVINO does not run itself: cifar_resnet20_functions, as it knows no functions with",
            "attributes of their own (what is written for it has none); silero_vad, as it knows no rank of what a Conv",
            "and a ReduceMean in the branches of an If read; silero_vad_op18_ifless, as it takes no scalar where an",
            "input of one dimension is declared; and tiny-random-gpt2-fp32_past, as it makes an input without a rank",
            "of the third output of onnxruntime's EmbedLayerNormalization.",
            "",
            f"| {' | '.join(HEADER)} |",
            "|---" * len(HEADER) + "|",
            *map(str, rows),
            "",
        ]
    )


def main() -> None:
    parser = parser_for(__doc__, TABLE)
    parser.add_argument("--scores", action="store_true", help="leave the times out")
    parser.add_argument("--again", action="store_true", help="measure also what is in the table")
    parser.add_argument("--folder", type=Path, help="where files are kept  [default: nowhere]")
    parser.add_argument("--times", action="store_true", help="measure only the times, of files that are in --folder")
    parser.add_argument("names", nargs="*", help="only these models, also if they are in the table")
    options, zoo = start(parser)
    rows = {row.model: row for row in read_rows(TABLE, Row, HEADER)}
    for name in options.names or zoo.MODELS:
        if name in rows and not (options.names or options.again or options.times):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)) / name
            if options.times and name in rows and folder.exists():
                rows[name] = timed_again(zoo, rows[name], folder)
            elif not options.times:
                rows[name] = measure(zoo, name, folder, times=not options.scores)
        print(rows.get(name), flush=True)
        if options.write:
            TABLE.write_text(render([rows[known] for known in zoo.MODELS if known in rows]), encoding="utf-8")


if __name__ == "__main__":
    main()
