"""The committed table of training: `python tests/zoo/training.py [--write] [NAME …]`.

Each case is quantized as `onnxq quantize` does it, then trained from there by `onnxq train`'s own function, and scored
on data that neither saw: charlm by the shared zoo.py, digits_cnn by models/evaluate.py.

charlm takes about half an hour of two cores that do nothing else; `--folder` keeps what data say of its layers and the
checkpoint, from which an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from started import SHARED, load_zoo
from tables import TableRow, read_rows

import onnxq
from onnxq.job import open_job
from onnxq.recipe import Rule
from onnxq.training import Settings, train

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "training.md"
HEADER = ("case", "metric", "float", "quantized", "trained", "at least", "steps", "minutes")


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text."""

    case: str
    metric: str
    in_float: str
    quantized: str
    trained: str
    least: str
    steps: str
    minutes: str


@dataclass(frozen=True)
class Case:
    """What is trained on what, and how it is scored.

    Attributes:
        words: what the table calls it.
        data: of which nothing is scored.
        score: of a file.
        images: so many are trained on, as the zoo prepares them, with their mirror images; 0: the data are what
            the model reads.
        throughout: each weight stays in the format that was asked for, whatever it costs.
    """

    words: str
    metric: str
    model: Path
    recipe: onnxq.Recipe
    target: str
    data: Path
    score: Callable[[Path], float]
    form: str
    least: str
    settings: Settings
    throughout: bool = False
    images: int = 0


def _zoo() -> Any:
    zoo = load_zoo()
    if zoo is None:
        raise SystemExit(f"no shared models in {SHARED}; ONNXQ_SHARED says where they are")
    return zoo


def _charlm(path: Path) -> float:
    return float(_zoo().score("charlm", path))


def _mobilenet(path: Path) -> float:
    return 100 * float(_zoo().score("mobilenetv2_cifar10", path))


def _digits(path: Path) -> float:
    spec = importlib.util.spec_from_file_location("evaluate", ROOT / "models" / "evaluate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["evaluate"] = module
    spec.loader.exec_module(module)
    found: float = module.score("digits_cnn", path)[0]
    return found


CASES = {
    "charlm": Case(
        words="charlm, `uint2` in blocks of 32, learns from the 256 windows of charlm_train",
        metric="nll",
        model=SHARED / "models" / "charlm.onnx",
        recipe=onnxq.Recipe(
            "uint2",
            (Rule("int8", ops=("Gather",)),),
            block_size=32,
            min_sqnr=float("-inf"),
            accuracy_level=0,
            algorithm="gptq",
        ),
        target="onnxq",
        data=SHARED / "data" / "charlm" / "charlm_train.npz",
        score=_charlm,
        form="{:.4f}",
        least="1.4450",
        settings=Settings(
            learn=("weights", "scales", "norms", "biases"),
            steps=600,
            batch=4,
            rate=0.005,
            evaluate_every=50,
            bfloat16=True,
        ),
        throughout=True,
    ),
    "mobilenetv2_cifar10": Case(
        words="mobilenetv2_cifar10, `w4a8`: all convolutions `int4`, 8-bit activations, from 500 images, mirrored too",
        metric="% right",
        model=SHARED / "models" / "mobilenetv2_cifar10.onnx",
        recipe=onnxq.Recipe("w4a8", min_sqnr=float("-inf"), keep_slow=True),
        target="ort-cpu",
        data=SHARED / "data" / "cifar10_jpeg" / "cifar10.npz",
        score=_mobilenet,
        form="{:.2f}",
        least="74.50",
        settings=Settings(
            learn=("weights", "scales", "ranges", "biases"),
            block_steps=80,
            steps=160,
            batch=16,
            rate=0.003,
            evaluate_every=40,
            checkpoint_every=40,
        ),
        throughout=True,
        images=500,
    ),
    "digits_cnn": Case(
        words="digits_cnn, `int4` (the 288 weights of the first layer `float16`), from its calibration data",
        metric="% right",
        model=ROOT / "models" / "digits_cnn.onnx",
        recipe=onnxq.Recipe("int4", min_sqnr=float("-inf"), accuracy_level=0),
        target="ort-cpu",
        data=ROOT / "models" / "digits_cnn_calibration.npz",
        score=_digits,
        form="{:.2f}",
        least="98.76",
        settings=Settings(steps=400, evaluate_every=50),
    ),
}


def _samples(case: Case) -> Any:
    """As the model reads them: windows of charlm are its input and, one further, what is right."""
    if case.images:
        images = _zoo().calibration(case.model.stem, case.images)
        return images + [{name: np.ascontiguousarray(x[..., ::-1]) for name, x in feed.items()} for feed in images]
    with np.load(case.data) as data:
        if "ids" in data and case.model.stem == "charlm":
            return [{"ids": row[None, :-1]} for row in data["ids"]]
    return case.data


def carry_out(case: Case, folder: Path) -> Row:
    """Quantize, train and score."""
    samples, options = _samples(case), dict[str, Any](target=case.target, limit=None, force=True)
    options["evidence"] = folder / f"{case.model.stem}.evidence.npz"
    held_back = case.settings.held_back  # of the same samples' evidence
    if case.throughout:  # without trials of other plans
        options["plan"] = open_job(case.model, case.recipe, case.target, samples).plan
    plain, trained = (folder / f"{case.model.stem}.{word}.onnx" for word in ("plain", "trained"))
    onnxq.quantize(case.model, plain, case.recipe, data=samples, held_back=held_back, **options)
    start = time.monotonic()
    made = train(case.model, trained, case.recipe, data=samples, settings=case.settings, **options)
    minutes = (time.monotonic() - start) / 60
    print("\n".join(made.notes), flush=True)
    done = next(note.split()[1] for note in made.notes if note.startswith("trained "))
    scores = (case.form.format(case.score(path)) for path in (case.model, plain, trained))
    return Row(case.words, case.metric, *scores, case.least, done, f"{minutes:.0f}")


def write(rows: list[Row]) -> None:
    """Put rows into the table, in the place of those of the same cases."""
    merged = {row.case: row for row in (*read_rows(TABLE, Row, HEADER), *rows)}
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    at = lines.index("|---" * len(HEADER) + "|")
    behind = next((i for i in range(at + 1, len(lines)) if not lines[i].startswith("| ")), len(lines))
    lines[at + 1 : behind] = map(str, merged.values())
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}  [default: all]")
    parser.add_argument("--write", action="store_true", help=f"put the rows into docs/{TABLE.name}")
    parser.add_argument("--folder", type=Path, help="where files are kept  [default: nowhere]")
    arguments = parser.parse_args()
    if wrong := next((name for name in arguments.names if name not in CASES), None):
        parser.error(f"there is no case '{wrong}'; choose among {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or CASES:
            row = carry_out(CASES[name], folder)
            print(row, flush=True)
            if arguments.write:
                write([row])


if __name__ == "__main__":
    main()
